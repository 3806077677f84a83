"""Is a file of boosted trees one that XGBoost can load and walk? Its own reader believes every index it is told.

An index out of bounds crashes the process, children that point back make a prediction endless. So every node is looked
at before XGBoost sees a byte: one tree a round, reached from its root once, children and columns in range, thresholds
and leaves finite. Only what our families write is let through: gbtree, squared error, one output, no categories.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tencost.models.trees.ubjson import read_ubjson

_NODE_ARRAYS = {
    "base_weights": ">f4",
    "default_left": "|u1",
    "left_children": ">i4",
    "loss_changes": ">f4",
    "parents": ">i4",
    "right_children": ">i4",
    "split_conditions": ">f4",
    "split_indices": ">i4",
    "split_type": "|u1",
    "sum_hessian": ">f4",
}
"""One value a node, each. Leaves have their value in split_conditions, and no children (-1)."""
_CATEGORIES = ("categories", "categories_nodes", "categories_segments", "categories_sizes")
_ROOT_PARENT = 2**31 - 1
_LEAF = -1


def check_trees(content: bytes) -> int:
    """Look at every node of XGBoost UBJSON; return the major release of the XGBoost that wrote it.

    Raises:
        ValueError, TypeError: not such a file, or trees that cannot be walked; the message says what was found where.
    """
    model = read_ubjson(content)
    _keys("the file", model, ("learner", "version"))
    learner = _part(model, "learner")
    _keys(
        "learner",
        learner,
        ("attributes", "feature_names", "feature_types", "gradient_booster",
         "learner_model_param", "objective"),
    )  # fmt: skip
    for name in ("feature_names", "feature_types"):
        _expect(f"learner.{name}", _plain(learner.get(name, [])), [])
    for key, text in _part(learner, "attributes").items():
        if not isinstance(text, str):
            raise TypeError(f"learner.attributes.{key} is no text")
    parameters = _part(learner, "learner_model_param")
    columns = _number(parameters, "num_feature")
    _expect("num_class", _number(parameters, "num_class"), 0)
    _expect("num_target", _number(parameters, "num_target"), 1)
    base = str(parameters.get("base_score", ""))
    if not re.fullmatch(r"\[?-?\d+(\.\d+)?(E-?\d{1,2})?\]?", base):
        raise ValueError(f"base_score is {base[:40]!r}")
    _expect("objective", _part(learner, "objective").get("name"), "reg:squarederror")
    booster = _part(learner, "gradient_booster")
    _keys("gradient_booster", booster, ("model", "name"))
    _expect("gradient_booster.name", booster.get("name"), "gbtree")
    _check_forest(_part(booster, "model"), columns)
    version = _plain(model.get("version"))
    if not (isinstance(version, list) and version and type(version[0]) is int):
        raise ValueError(f"version is {str(version)[:40]}")
    return version[0]


def _check_forest(forest: dict[str, Any], columns: int) -> None:
    _keys(
        "the trees' model",
        forest,
        ("cats", "gbtree_model_param", "iteration_indptr", "tree_info", "trees"),
    )
    for name, values in _part(forest, "cats").items() if "cats" in forest else ():
        _expect(f"cats.{name}", _plain(values), [])
    parameters = _part(forest, "gbtree_model_param")
    trees = forest.get("trees")
    if not isinstance(trees, list) or not all(isinstance(tree, dict) for tree in trees):
        raise ValueError("trees is no list of objects")
    number = len(trees)
    _expect("num_parallel_tree", _number(parameters, "num_parallel_tree"), 1)
    _expect("num_trees", _number(parameters, "num_trees"), number)
    _expect("tree_info", _plain(forest.get("tree_info")), [0] * number)
    _expect("iteration_indptr", _plain(forest.get("iteration_indptr")), list(range(number + 1)))
    deleted = 0
    for index, tree in enumerate(trees):
        _keys(f"tree {index}", tree, (*_NODE_ARRAYS, *_CATEGORIES, "id", "tree_param"))
        _expect(f"tree {index}: id", tree.get("id"), index)
        for name in _CATEGORIES:
            _expect(f"tree {index}: {name}", _plain(tree.get(name)), [])
        param = _part(tree, "tree_param")
        size = _number(param, "num_nodes")
        _expect(f"tree {index}: num_feature", _number(param, "num_feature"), columns)
        _expect(f"tree {index}: size_leaf_vector", _number(param, "size_leaf_vector"), 1)
        deleted += _number(param, "num_deleted")
        for name, kind in _NODE_ARRAYS.items():
            array = tree.get(name)
            if not isinstance(array, np.ndarray) or array.dtype.str != kind or len(array) != size:
                raise ValueError(f"tree {index}: {name} is not one number of type {kind} a node")
        if size < 1:
            raise ValueError(f"tree {index} has no nodes")
    if trees:
        _check_nodes(trees, columns, deleted)


def _check_nodes(trees: list[dict[str, Any]], columns: int, deleted: int) -> None:
    """Walk all trees at once, level by level, and check that every node is reached once: there is no cycle."""
    sizes = np.array([len(tree["left_children"]) for tree in trees], np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)[:-1]])
    nodes = {
        name: np.concatenate([tree[name] for tree in trees]).astype(kind[1:])
        for name, kind in _NODE_ARRAYS.items()
    }
    tree_of = np.repeat(np.arange(len(trees)), sizes)
    size_of, start_of = sizes[tree_of], starts[tree_of]
    left, right = nodes["left_children"].astype(np.int64), nodes["right_children"].astype(np.int64)

    def refuse(wrong: npt.NDArray[np.bool_], at: npt.NDArray[np.int64], what: str) -> None:
        if wrong.any():
            node = at[np.flatnonzero(wrong)[0]]
            raise ValueError(f"tree {tree_of[node]}, node {node - start_of[node]}: {what}")

    refuse(nodes["parents"][starts] != _ROOT_PARENT, starts, "the root has a parent")
    reached = np.zeros(len(left), np.int64)
    level = starts
    while len(level):
        reached[level] += 1
        refuse(
            ~np.isfinite(nodes["split_conditions"][level]),
            level,
            "a threshold or leaf is not finite",
        )
        refuse(~np.isfinite(nodes["base_weights"][level]), level, "a weight is not finite")
        leaf = (left[level] == _LEAF) & (right[level] == _LEAF)
        inner = level[~leaf]
        split = nodes["split_indices"][inner]
        refuse((split < 0) | (split >= columns), inner, f"it splits on none of {columns} columns")
        refuse(nodes["split_type"][inner] != 0, inner, "it splits on categories")
        refuse(nodes["default_left"][inner] > 1, inner, "default_left is neither 0 nor 1")
        children = []
        for side in (left, right):
            child = side[inner]
            refuse(
                (child < 1) | (child >= size_of[inner]),
                inner,
                "a child is none of the tree's nodes",
            )
            places = child + start_of[inner]
            refuse(
                nodes["parents"][places] != inner - start_of[inner],
                inner,
                "a child has another parent",
            )
            children.append(places)
        level = np.concatenate(children)
        again = np.bincount(level, minlength=len(reached))[level] + reached[level] > 1
        refuse(again, level, "it is reached twice")
    if int((reached == 0).sum()) != deleted:
        raise ValueError(
            f"{int((reached == 0).sum())} nodes are out of reach, {deleted} are said to be deleted"
        )


def _keys(where: str, values: Mapping[str, Any], allowed: Iterable[str]) -> None:
    unknown = sorted(set(values) - set(allowed))
    if unknown:
        raise ValueError(f"{where} has {unknown[0][:40]!r}, which no model of ours has")


def _part(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = values.get(name)
    if not isinstance(part, dict):
        raise TypeError(f"{name} is no object")
    return part


def _number(values: Mapping[str, Any], name: str) -> int:
    text = values.get(name)
    if not isinstance(text, str) or not re.fullmatch(r"\d{1,9}", text):
        raise ValueError(f"{name} is no number: {str(text)[:40]!r}")
    return int(text)


def _plain(values: Any) -> Any:
    return values.tolist() if isinstance(values, np.ndarray) else values


def _expect(where: str, actual: Any, expected: Any) -> None:
    if actual != expected:
        raise ValueError(f"{where} is {str(actual)[:40]}, expected {str(expected)[:40]}")
