"""Full lists of one namespace and of all."""

from typing import Any

from stele.adapters.kubernetes.api import CLAIMS, PODS
from stele.master.cache import Cache


def pod(namespace: str, name: str, version: int) -> dict[str, Any]:
    uid = f"{namespace}/{name}"
    return {"metadata": {"namespace": namespace, "name": name, "uid": uid, "resourceVersion": str(version)}}


def filled() -> Cache:
    cache = Cache(lambda _kind, _stored: None)
    for namespace in ("a", "b"):
        for name in ("one", "two"):
            cache.put(PODS, pod(namespace, name, 1))
    cache.put(PODS, pod("b", "new", 9))
    return cache


def names(cache: Cache) -> set[str]:
    return {each["metadata"]["uid"] for each in cache.all(PODS)}


def test_what_has_a_label_is_found_once_until_an_object_of_the_kind_changes() -> None:
    cache = filled()
    marked = pod("a", "marked", 2)
    marked["metadata"]["labels"] = {"of": "demo"}
    before = cache.labelled(PODS, "a", "of", "demo")
    cache.put(PODS, marked)
    found = cache.labelled(PODS, "a", "of", "demo")
    assert (before, found) == ((), (marked,))
    assert cache.labelled(PODS, "a", "of", "demo") is found
    assert cache.labelled(PODS, "b", "of", "demo") == cache.labelled(PODS, "a", "of", "other") == ()
    cache.put(CLAIMS, pod("a", "claim", 3))
    assert cache.labelled(PODS, "a", "of", "demo") is found
    cache.remove(PODS, marked)
    assert cache.labelled(PODS, "a", "of", "demo") == ()


def test_a_list_of_one_namespace_leaves_the_others_alone() -> None:
    cache = filled()
    cache.replace(PODS, "a", [pod("a", "one", 1)], 5)
    assert names(cache) == {"a/one", "b/one", "b/two", "b/new"}


def test_a_list_of_all_removes_what_is_gone_in_any_and_not_what_is_newer() -> None:
    cache = filled()
    cache.replace(PODS, None, [pod("a", "one", 1), pod("b", "two", 1)], 5)
    assert names(cache) == {"a/one", "b/two", "b/new"}
