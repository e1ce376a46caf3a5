"""Which profile a connection gets, settled by its connect and by what the server offers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

from unisono.protocol.errors import ProfileUnsupported
from unisono.protocol.messages import Connect
from unisono.protocol.profiles import CANONICAL, COMPATIBILITY, capabilities, negotiate

C, T = CANONICAL, COMPATIBILITY
BOTH = [C, T]


def connect(
    supported: list[str] | UnsetType = UNSET,
    required: str | UnsetType = UNSET,
    policy: str | UnsetType = UNSET,
) -> Connect:
    return Connect(
        "t", "c", supported_profiles=supported, required_profile=required, required_tree_policy=policy
    )


@pytest.mark.req("PROF-01", "PROF-02", "PROF-03", "PROF-04")
@pytest.mark.parametrize(
    ("supported", "required", "offered", "default", "chosen"),
    [
        # No field: canonical, or what the operator put in its place.
        (UNSET, UNSET, BOTH, C, C),
        (UNSET, UNSET, [C], C, C),
        (UNSET, UNSET, [T], C, None),
        (UNSET, UNSET, BOTH, T, T),
        (UNSET, UNSET, [C], T, None),
        # A list: the first that is offered, in the client's order.
        ([C], UNSET, BOTH, T, C),
        ([T], UNSET, BOTH, C, T),
        ([C, T], UNSET, BOTH, T, C),
        ([T, C], UNSET, BOTH, C, T),
        ([C, T], UNSET, [T], C, T),
        ([T, C], UNSET, [C], T, C),
        (["future", T], UNSET, BOTH, C, T),
        (["future"], UNSET, BOTH, C, None),
        ([], UNSET, BOTH, C, None),
        (["Canonical"], UNSET, BOTH, C, None),
        # A requirement: that one or none, without a list from canonical alone, and the default has no say.
        (UNSET, T, BOTH, C, None),
        (UNSET, T, BOTH, T, None),
        (UNSET, T, [T], T, None),
        (UNSET, C, BOTH, T, C),
        (UNSET, C, [T], T, None),
        ([T], T, BOTH, C, T),
        (UNSET, T, [C], C, None),
        (UNSET, "future", BOTH, C, None),
        ([C, T], T, BOTH, C, T),
        ([C, T], T, [C], C, None),
        ([C], T, BOTH, C, None),
        ([], C, BOTH, C, None),
    ],
)
def test_the_negotiation_table(
    supported: list[str] | UnsetType,
    required: str | UnsetType,
    offered: list[str],
    default: str,
    chosen: str | None,
) -> None:
    asked = connect(supported, required)
    if chosen is not None:
        assert negotiate(asked, offered, default) == chosen
        return
    with pytest.raises(ProfileUnsupported) as caught:
        negotiate(asked, offered, default)
    assert caught.value.payload()["details"] == {"supported_profiles": offered}


@pytest.mark.req("PROF-04")
@pytest.mark.parametrize(
    ("profile", "policy", "accepted"),
    [(T, "strict", True), (T, "lenient", False), (T, "", False), (C, "strict", True), (C, "lenient", True)],
)
def test_a_tree_policy_matters_only_where_trees_are(profile: str, policy: str, accepted: bool) -> None:
    asked = connect([profile], policy=policy)
    if accepted:
        assert negotiate(asked, BOTH) == profile
    else:
        with pytest.raises(ProfileUnsupported, match="strict"):
            negotiate(asked, BOTH)


@pytest.mark.req("PROF-05")
def test_capabilities_name_the_tree_policy_exactly_for_compatibility() -> None:
    assert capabilities(C, ["event"]) == {
        "profile": C,
        "accepted_event_types": ["event"],
        "ordered_delivery": True,
    }
    assert capabilities(T, ["set", "unset"]) == {
        "profile": T,
        "accepted_event_types": ["set", "unset"],
        "tree_policy": "strict",
        "ordered_delivery": True,
    }


profiles = st.sampled_from([C, T, "future", "other"])


@pytest.mark.req("PROF-03", "PROF-04")
@given(
    supported=st.just(UNSET) | st.lists(profiles, max_size=5),
    required=st.just(UNSET) | profiles,
    policy=st.just(UNSET) | st.sampled_from(["strict", "lenient"]),
    offered=st.lists(st.sampled_from(BOTH), unique=True, min_size=1),
    default=st.sampled_from(BOTH),
)
def test_what_is_chosen_is_offered_supported_and_required(
    supported: list[str] | UnsetType,
    required: str | UnsetType,
    policy: str | UnsetType,
    offered: list[str],
    default: str,
) -> None:
    allowed = [
        name for name in (supported or []) if name in offered and (required is UNSET or name == required)
    ]
    if supported is UNSET:
        only = default if required is UNSET else CANONICAL
        allowed = [only] if only in offered and required in (UNSET, only) else []
    try:
        chosen = negotiate(connect(supported, required, policy), offered, default)
    except ProfileUnsupported:
        assert not allowed or (allowed[0] == T and policy == "lenient")
    else:
        assert chosen == allowed[0]
        assert chosen != T or policy != "lenient"
