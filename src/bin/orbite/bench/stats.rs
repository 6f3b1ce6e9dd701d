//! Percentiles of per-operation samples, and rates.

use serde::Serialize;

/// Fewest samples above a percentile that make it worth printing.
const ABOVE_MIN: usize = 10;

/// The value at fraction `q` of `sorted`: index `floor(q * n)`, at most the last. The rule of the
/// external benchmark contract. 0 without samples.
pub(crate) fn percentile(sorted: &[u64], q: f64) -> u64 {
    sorted.get(index(sorted.len(), q)).copied().unwrap_or(0)
}

fn index(n: usize, q: f64) -> usize {
    ((q * n as f64) as usize).min(n.saturating_sub(1))
}

/// The percentile, if at least ten samples lie above it.
fn supported(sorted: &[u64], q: f64) -> Option<u64> {
    let n = sorted.len();
    let above = n.checked_sub(index(n, q) + 1)?;
    (above >= ABOVE_MIN).then(|| percentile(sorted, q))
}

/// Latencies of one measurement, nanoseconds. `None`: too few samples for that percentile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Latency {
    pub samples: u64,
    pub min: u64,
    pub mean: u64,
    pub max: u64,
    pub p50: Option<u64>,
    pub p90: Option<u64>,
    pub p99: Option<u64>,
    pub p999: Option<u64>,
}

impl Latency {
    /// Sorts the samples and sums them up.
    pub(crate) fn of(samples: &mut [u64]) -> Self {
        samples.sort_unstable();
        let sum: u128 = samples.iter().map(|ns| u128::from(*ns)).sum();
        Self {
            samples: samples.len() as u64,
            min: samples.first().copied().unwrap_or(0),
            mean: (sum / (samples.len() as u128).max(1)) as u64,
            max: samples.last().copied().unwrap_or(0),
            p50: supported(samples, 0.50),
            p90: supported(samples, 0.90),
            p99: supported(samples, 0.99),
            p999: supported(samples, 0.999),
        }
    }
}

/// 10^9 bytes per second.
pub(crate) fn gigabytes_per_second(bytes: u64, wall_ns: u64) -> f64 {
    if wall_ns == 0 { 0.0 } else { bytes as f64 / wall_ns as f64 }
}

/// Nanoseconds as microseconds.
pub(crate) fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// Rounded to `digits` decimals, so that output is short and stable.
pub(crate) fn round(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

/// The middle value, or the mean of the two in the middle. `None` of nothing.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    let high = *values.get(middle)?;
    if values.len() % 2 == 1 {
        return Some(high);
    }
    Some(f64::midpoint(*values.get(middle - 1)?, high))
}

/// Latencies in microseconds, as they stand in JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LatencyMicros {
    min: f64,
    mean: f64,
    max: f64,
    p50: Option<f64>,
    p90: Option<f64>,
    p99: Option<f64>,
    p999: Option<f64>,
}

impl From<&Latency> for LatencyMicros {
    fn from(latency: &Latency) -> Self {
        let us = |ns: u64| round(micros(ns), 3);
        Self {
            min: us(latency.min),
            mean: us(latency.mean),
            max: us(latency.max),
            p50: latency.p50.map(us),
            p90: latency.p90.map(us),
            p99: latency.p99.map(us),
            p999: latency.p999.map(us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_rule_is_that_of_the_contract() {
        // Values of the contract's own function for the same lists.
        let list = |n: u64| (1..=n).collect::<Vec<u64>>();
        for (n, q, value) in [
            (1, 0.5, 1),
            (2, 0.5, 2),
            (3, 0.5, 2),
            (20, 0.99, 20),
            (100, 0.5, 51),
            (100, 0.99, 100),
            (1000, 0.99, 991),
            (2000, 0.5, 1001),
            (2000, 0.99, 1981),
        ] {
            assert_eq!(percentile(&list(n), q), value, "{n} {q}");
        }
        assert_eq!(percentile(&[], 0.5), 0);
    }

    #[test]
    fn a_percentile_needs_ten_samples_above_it() {
        let latency = |n: u64| Latency::of(&mut (1..=n).rev().collect::<Vec<u64>>());
        assert_eq!(latency(20).p50, None);
        assert_eq!(latency(21).p50, Some(11));
        assert_eq!(latency(1000).p99, None);
        assert_eq!(latency(1001).p99, Some(991));
        assert_eq!(latency(10_000).p999, None);
        assert_eq!(latency(10_010).p999, Some(10_000));
        let none = Latency::of(&mut []);
        assert_eq!(none, Latency::default());
    }

    #[test]
    fn summaries_are_those_of_the_samples() {
        let latency = Latency::of(&mut [5, 1, 3]);
        assert_eq!((latency.samples, latency.min, latency.mean, latency.max), (3, 1, 3, 5));
    }

    #[test]
    fn rates_count_in_powers_of_ten() {
        assert!((gigabytes_per_second(4_000_000_000, 2_000_000_000) - 2.0).abs() < 1e-12);
        assert!(gigabytes_per_second(1, 0).abs() < 1e-12);
        assert!((round(1.234_56, 2) - 1.23).abs() < 1e-12);
    }

    #[test]
    fn medians_of_even_and_odd_lists() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
