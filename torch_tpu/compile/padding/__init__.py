"""How operators compute with padded tensors, so that what is filled comes out as without padding.

A rule is called with the sizes, the graph's node and the node's arguments: tensors as `Padded`,
symbolic numbers as expressions. It returns what the operator does, tensors as `Padded`. What is in
the padding is arbitrary: a rule that mixes places replaces it first.
"""

from . import attention as attention  # these register rules
from . import batch_norm as batch_norm
from . import elementwise as elementwise
from . import indices as indices
from . import losses as losses
from . import products as products
from . import reductions as reductions
from . import rows as rows
from . import views as views
from .rule import Padded, apply

__all__ = ["Padded", "apply"]
