# SPDX-License-Identifier: MIT
from .._algorithms import AlgorithmCollectionBuilder as AlgorithmCollectionBuilder
