from . import columns as columns
from . import reference as reference
from . import seq2seq as seq2seq
from ._attention import attention as attention
from ._formulas import additive_score as additive_score
from ._formulas import concat_score as concat_score
from ._formulas import dot_score as dot_score
from ._formulas import general_score as general_score
from ._formulas import location_score as location_score
from ._formulas import scaled_dot_score as scaled_dot_score
from ._functions import additive_attention as additive_attention
from ._functions import concat_attention as concat_attention
from ._functions import dot_attention as dot_attention
from ._functions import general_attention as general_attention
from ._functions import location_attention as location_attention
from ._functions import scaled_dot_attention as scaled_dot_attention
from ._memory import Attended as Attended
from ._memory import Memory as Memory
from ._modules import Attention as Attention
from ._modules import AttentionalState as AttentionalState
from ._score import Concat as Concat
from ._score import Dot as Dot
from ._score import General as General
from ._score import Location as Location
from ._score import Scaled as Scaled
from ._score import ScaledDot as ScaledDot
from ._score import Score as Score
from ._window import Causal as Causal
from ._window import LocalMonotonic as LocalMonotonic
from ._window import LocalPredictive as LocalPredictive
from ._window import Window as Window
from ._windowed import AttendedWindow as AttendedWindow
from .kernels.dispatch import explain as explain
from .toolkit import load as load
from .toolkit.inference.pictures import plot_alignment as plot_alignment

__all__: list[str]
__version__: str
