"""Partition sets: one normal form for every way of writing the same set."""

from __future__ import annotations

import sys
import time
import unicodedata
from itertools import pairwise
from random import Random
from typing import Literal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from unisono.protocol.canonical import canonical, content_hash
from unisono.protocol.codec import encode_event
from unisono.protocol.partitions import (
    ENTRIES_MAX,
    MARKS_MAX,
    NAME_BYTES_MAX,
    SENT_NAME_BYTES_MAX,
    PartitionError,
    normal_start,
    normalise,
)

# Letters that combine, letters that NFC takes apart, Hangul, and planes above the first.
characters = st.sampled_from(
    "aAzZ 0é\u0301e\u0300\u0958\u1100\u1161\u11a8\uac00\ufb1d\uffff\U0001f600\U0001d15e"
)
name = st.text(characters, min_size=1, max_size=12) | st.text(min_size=1, max_size=20)
sets = st.lists(name, min_size=1, max_size=10)


def refused(names: list[str]) -> PartitionError:
    with pytest.raises(PartitionError) as caught:
        normalise(names)
    return caught.value


@pytest.mark.req("PART-02")
@given(sets)
def test_the_normal_form_is_nfc_unique_and_in_byte_order(names: list[str]) -> None:
    normal = normalise(names)
    assert set(normal) == {unicodedata.normalize("NFC", name) for name in names}
    encoded = [name.encode() for name in normal]
    assert all(first < second for first, second in pairwise(encoded))


@pytest.mark.req("PART-02")
@given(sets)
def test_normalising_twice_changes_nothing_more(names: list[str]) -> None:
    normal = normalise(names)
    assert normalise(normal) == normal


@pytest.mark.req("PART-02", "PART-03")
@given(sets, st.randoms(use_true_random=False), st.sampled_from(["NFC", "NFD"]))
def test_order_repetition_and_spelling_do_not_matter(
    names: list[str], random: Random, form: Literal["NFC", "NFD"]
) -> None:
    other = [unicodedata.normalize(form, name) for name in names + names[:3]]
    random.shuffle(other)
    normal = normalise(names)
    assert normalise(other) == normal
    event = b'{"type":"set"}'
    assert content_hash(event, canonical(list(normalise(other)))) == content_hash(
        event, canonical(list(normal))
    )
    assert encode_event(1, "e", "c", normalise(other), event, 1) == encode_event(
        1, "e", "c", normal, event, 1
    )


@pytest.mark.req("PART-02")
@pytest.mark.parametrize("name", [" a", "a ", "A", "\tp\n", "ﬁ", "①", "\u200b", "a/b", "İ", "\x00", "."])
def test_nothing_else_is_rewritten(name: str) -> None:
    assert normalise([name]) == (name,)


@pytest.mark.req("PART-02")
def test_the_order_is_that_of_utf8_and_not_of_utf16() -> None:
    assert normalise(["\U00010000", "\uffff", "a", "B", "é", "z"]) == (
        "B",
        "a",
        "z",
        "é",
        "\uffff",
        "\U00010000",
    )


@pytest.mark.req("PART-02")
def test_spellings_that_differ_in_more_than_nfc_stay_apart() -> None:
    assert len(normalise(["fi", "ﬁ", "A", "a", "Å", "A\u030a", "\u212b"])) == 5


@pytest.mark.req("PART-01")
def test_at_least_one_entry_unless_none_is_allowed() -> None:
    assert refused([]).index is None
    assert normalise([], allow_empty=True) == ()
    with pytest.raises(PartitionError):
        normalise([""], allow_empty=True)


@pytest.mark.req("PART-01")
def test_entries_are_counted_as_sent() -> None:
    assert ENTRIES_MAX == 64
    assert len(normalise([f"p{n}" for n in range(64)])) == 64
    assert normalise(["p"] * 64) == ("p",)
    assert refused(["p"] * 65).index is None
    assert "65" in str(refused([f"p{n}" for n in range(65)]))
    assert len(normalise([f"p{n}" for n in range(70)], entries_max=70)) == 70


@pytest.mark.req("PART-01")
def test_bytes_are_measured_after_nfc() -> None:
    assert NAME_BYTES_MAX == 128
    assert normalise(["a" * 128]) == ("a" * 128,)
    assert refused(["ok", "a" * 129]).index == 1
    assert normalise(["e\u0301" * 64]) == ("é" * 64,)  # 192 bytes as sent, 128 in NFC
    assert refused(["e\u0301" * 65]).index == 0
    assert len(("\u0958" * 22).encode()) < 128  # 66 bytes as sent, 132 in NFC, which takes this letter apart
    assert refused(["\u0958" * 22]).index == 0


@pytest.mark.req("PART-01")
@pytest.mark.parametrize("bad", ["", "a" * 129, "\ud800", "a\udfffb"], ids=repr)
@pytest.mark.parametrize("at", [0, 2])
def test_the_entry_at_fault_is_named_by_its_place(bad: str, at: int) -> None:
    names = ["x", "y", "z"]
    names[at] = bad
    assert refused(names).index == at
    assert refused([bad]).index == 0


@pytest.mark.req("PART-01")
@given(st.lists(st.text(st.characters(codec=None), max_size=80), max_size=70))
def test_any_list_of_text_is_normalised_or_refused(names: list[str]) -> None:
    def fits(name: str) -> bool:
        normal = unicodedata.normalize("NFC", name)
        try:
            return 1 <= len(normal.encode()) <= 128
        except UnicodeEncodeError:
            return False

    good = 1 <= len(names) <= 64 and all(fits(name) for name in names)
    if good:
        assert 1 <= len(normalise(names)) <= len(names)
    else:
        at = refused(names).index
        assert at is None or not fits(names[at])


@pytest.mark.req("PART-01")
@given(name)
def test_one_entry_and_the_same_entry_twice_agree(name: str) -> None:
    assume(len(unicodedata.normalize("NFC", name).encode()) <= 128)
    assert normalise([name]) == normalise([name, name])


# -- what normalising costs ----------------------------------------------------------------------------------

every_character = [chr(code) for code in range(0x30000) if not 0xD800 <= code <= 0xDFFF]
"""But for the planes in which nothing ever changes."""
marks = [character for character in every_character if unicodedata.combining(character)]
nasty = st.sampled_from(
    ["\u0344", "\u0f73", "\u0f75", "\u0f81", "\u0345", "\u0334", "\u0300", "\u0315", "a", "ặ", "\U0001d165"]
)


@pytest.mark.req("PART-01")
def test_no_name_that_fits_after_nfc_is_longer_before_than_the_bound() -> None:
    """Over all of Unicode: a character's bytes, spread over what it decomposes to, bound what NFC can save.

    Every text that becomes `c` in NFC has the decomposition of `c`. `share` is the most bytes that each part of a
    decomposition can stand for, so the shares of a decomposition are the most bytes that can become one `c`.
    """
    rest = "".join(map(chr, range(0x30000, sys.maxunicode + 1)))
    assert unicodedata.normalize("NFD", rest) == unicodedata.normalize("NFC", rest) == rest
    decomposed = {character: unicodedata.normalize("NFD", character) for character in every_character}
    share: dict[str, int] = {}
    for character, parts in decomposed.items():
        if len(parts) == 1:
            share[parts] = max(share.get(parts, 0), len(character.encode()))
    worst = 0.0
    for character, parts in decomposed.items():
        shares = sum(share[part] for part in parts)
        assert shares >= len(character.encode()), "the parts bound the whole"
        if unicodedata.is_normalized("NFC", character):
            worst = max(worst, shares / len(character.encode()))
    assert worst == 3.5  # U+1FBE U+0308 U+0301, seven bytes, become U+0390, which has two
    assert worst * NAME_BYTES_MAX <= SENT_NAME_BYTES_MAX


@pytest.mark.req("PART-01")
def test_no_name_that_fits_has_more_marks_in_a_row_than_the_bound() -> None:
    taken = max(len(unicodedata.normalize("NFD", character)) for character in every_character) - 1
    assert min(len(mark.encode()) for mark in marks) == 2
    assert taken + NAME_BYTES_MAX // 2 == MARKS_MAX
    several = {
        c for c in every_character if _starts_with_a_mark(c) and len(unicodedata.normalize("NFD", c)) > 1
    }
    assert several == {"\u0344", "\u0f73", "\u0f75", "\u0f81"}
    assert max(marks) < "\U00020000"


def _starts_with_a_mark(character: str) -> bool:
    return unicodedata.combining(unicodedata.normalize("NFD", character)[0]) > 0


@pytest.mark.req("PART-01")
def test_the_longest_names_that_fit_are_taken() -> None:
    longest = "\u1fbe\u0308\u0301" * 64
    assert len(longest.encode()) == 448
    assert normalise([longest]) == ("\u0390" * 64,)
    assert (
        len(normalise(["\u1f80" + "\u0315" * 62])[0].encode()) == 127
    )  # a letter with all the marks it can have


@pytest.mark.req("PART-01", "LIM-07")
@pytest.mark.parametrize("names", [["\u0315\u0300" * 80_000], ["x" * 300_000], ["\U0001d165" * 70_000, "p"]])
def test_a_name_that_cannot_fit_is_refused_before_it_is_normalised(names: list[str]) -> None:
    started = time.process_time()
    error = refused(names)
    assert time.process_time() - started < 0.1  # NFC of the first takes half a minute
    assert error.index == 0
    assert len(str(error)) < 200
    assert normal_start(names[0]) is None


@pytest.mark.req("PART-02")
@given(st.lists(nasty | st.sampled_from(marks), min_size=17, max_size=70).map("".join))
def test_marks_in_any_order_become_what_nfc_makes_of_them(name: str) -> None:
    normal = unicodedata.normalize("NFC", name)
    if len(normal.encode()) <= NAME_BYTES_MAX:
        assert normalise([name]) == (normal,)
    else:
        assert refused([name]).index == 0


@pytest.mark.req("LIM-07")
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("\u0315\u0300" * 128, 2048),
        ("\u0345" * 128 + "\u0344" * 128, 2048),
        (("a" + "\u0315\u0300" * 33) * 3, 2048),
        ("\u0f73" * 170, 2048),
        ("\U0001d165\U0001d16d" * 64, 2048),
        ("\u0315\u0300\u0334\u0345" * 16, 6400),
        ("\u0345" * 32 + "\u0344" * 32, 6400),
    ],
    ids=["out of order", "two each", "long runs", "Tibetan", "music", "all kinds", "two each, short"],
)
def test_a_message_full_of_marks_costs_little(name: str, count: int) -> None:
    """As many as fit into a message of 1 MiB, or into 100 items of 64 partitions."""
    started = time.process_time()
    for _ in range(count):
        normal_start(name)
    assert (
        time.process_time() - started < 1.0
    )  # some tenths on a busy machine; many times that without the sorting


def test_the_start_of_a_name_is_normalised_like_a_name() -> None:
    assert normal_start("") == ""
    assert normal_start("cafe\u0301/") == "café/"
    assert normal_start("\ud800") is None
    assert normal_start("x" * 129) is None
