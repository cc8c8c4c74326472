"""Counts by bucket."""

from penstock.observability.histogram import SECONDS, Histogram


def test_a_histogram_counts_into_the_bucket_that_holds_the_value() -> None:
    histogram = Histogram(SECONDS)
    for value in (0.0, 0.001, 0.0011, 5000.0):
        histogram.observe(value)
    counts = dict(histogram.cumulative())
    assert counts["0.001"] == 2 and counts["0.0015"] == 3
    assert counts["600.0"] == 3 and counts["+Inf"] == 4
    assert histogram.sum == 5000.0021
    assert SECONDS[0] == 0.001 and SECONDS[-1] == 600.0 and list(SECONDS) == sorted(set(SECONDS))


def test_several_values_count_as_each_by_itself() -> None:
    values = [0.0003 * 1.3**place for place in range(60)]
    one, several = Histogram(SECONDS), Histogram(SECONDS)
    for value in values:
        one.observe(value)
    several.add(values[:20])
    several.add(values[20:])
    assert list(one.cumulative()) == list(several.cumulative())
    assert abs(one.sum - several.sum) < 1e-9
