from . import columns as columns
from . import reference as reference
from ._attention import Attended as Attended
from ._attention import Attention as Attention
from ._attention import AttentionalState as AttentionalState
from ._attention import additive_attention as additive_attention
from ._attention import attention as attention
from ._attention import concat_attention as concat_attention
from ._attention import dot_attention as dot_attention
from ._attention import general_attention as general_attention
from ._attention import location_attention as location_attention
from ._attention import scaled_dot_attention as scaled_dot_attention
from ._mask import Memory as Memory
from ._score import Concat as Concat
from ._score import Dot as Dot
from ._score import General as General
from ._score import Location as Location
from ._score import Scaled as Scaled
from ._score import ScaledDot as ScaledDot
from ._score import Score as Score
from ._score import additive_score as additive_score
from ._score import concat_score as concat_score
from ._score import dot_score as dot_score
from ._score import general_score as general_score
from ._score import location_score as location_score
from ._score import scaled_dot_score as scaled_dot_score

__version__: str
