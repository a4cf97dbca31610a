"""How the operators are computed: one file per operator."""
