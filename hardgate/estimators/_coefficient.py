"""The best multiple of a control variate: shared with the units, so it lives below both."""

from hardgate._coefficient import Coefficient as Coefficient
