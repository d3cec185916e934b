"""The counts in the docs are the sums of the records."""

from __future__ import annotations

from pathlib import Path

from tests.faults.__main__ import commands
from tests.faults.records import archive as records
from tests.faults.records.archive import Record
from tests.faults.records.report import BEGIN, DOC, END, rendered, table

ONE = Record("kill", 1, "abc", 20, 60.0, "passed", {"acknowledged": 10, "lost": 0})
TWO = Record("kill", 2, "abc", 10, 30.0, "failed", {"acknowledged": 5, "lost": 1})


def test_counts_in_the_docs_equal_those_of_the_records() -> None:
    text = DOC.read_text()
    assert text == rendered(text, records.read()), "run scripts/faults report"


def test_records_are_summed_and_a_failed_one_is_not_hidden() -> None:
    row = next(line for line in table([ONE, TWO]).splitlines() if line.startswith("| kill"))
    assert row == "| kill | 2 | 30 | – | 15 | 1 | – | – | – | – | – | – | – | 0.1 | 1.5 |"
    assert "- kill, seed 2, commit abc, 10 faults" in table([ONE, TWO])


def test_a_script_that_was_hit_less_often_than_the_others_is_not_hidden() -> None:
    first = {"fault claim cut": 3, "fault claim late": 1, "fault fail cut": 1, "faults": 5}
    second = {"fault claim late": 4, "fault fail cut": 1, "faults": 5}
    kept = [Record("replies", seed, "abc", 5, 9.0, "passed", counts) for seed, counts in ((1, first), (2, second))]
    said = table(kept, ["claim", "fail"])
    assert "each of 2 scripts had at least 2 lost replies (`fail`) and at least 0 late requests (`fail`)" in said


def test_faults_of_a_renamed_script_count_for_its_present_name() -> None:
    before = Record("replies", 1, "abc", 3, 9.0, "passed", {"fault fell cut": 3, "fault claim cut": 5})
    after = Record("replies", 2, "abc", 1, 9.0, "passed", {"fault block_children cut": 1})
    assert "at least 4 lost replies (`block_children`)" in table([before, after], ["claim", "block_children"])


def test_records_keep_the_script_names_of_the_commit_that_was_measured() -> None:
    first = next(
        record for record in records.read() if record.campaign == "replies" and "fault fell cut" in record.counts
    )
    assert "fault block_children cut" not in first.counts


def test_only_the_text_between_the_marks_is_replaced() -> None:
    text = rendered(f"before\n{BEGIN}\nold\n{END}\nafter\n", [ONE])
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text


def test_kept_records_are_read_back(tmp_path: Path) -> None:
    records.keep(ONE, tmp_path)
    records.keep(TWO, tmp_path)
    assert list(records.read(tmp_path)) == [ONE, TWO]


def test_the_docs_name_every_campaign() -> None:
    text = DOC.read_text()
    campaigns = [name for name, module in commands().items() if ".campaigns." in module]
    assert [name for name in campaigns if f"scripts/faults {name}" not in text] == []
