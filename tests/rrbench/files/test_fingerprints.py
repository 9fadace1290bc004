"""A hash of a user's own object follows what it does and holds."""

import numpy as np

from rrbench.files.fingerprints import of_object


def test_arrays_count_by_their_values_and_numpy_s_masked_has_a_hash_too() -> None:
    one, other = np.array([1.0, 2.0]), np.array([1.0, 3.0])
    assert of_object(one) == of_object(one.copy()) != of_object(other)
    assert of_object(np.ma.masked) == of_object(np.ma.masked) != of_object(one)
