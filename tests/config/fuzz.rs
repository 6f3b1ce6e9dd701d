//! Mutated inputs from fixed seeds. The bodies are shared with the fuzz targets.

use std::fs;

use orbite::SourceEpoch;
use orbite::testing::config::{self as bodies, Mutator};

use super::{child, in_child};

/// CORE-015: no mutated document makes the loader panic, hang, start a thread or keep a descriptor.
#[test]
fn core_015_mutated_documents_give_a_value_or_an_error() {
    let output = child("fuzz::child_reads_mutated_documents", None);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("<<<read>>>"), "{text}");
    println!("{text}");
}

/// `ORBITE_FUZZ_CASES` is their number: a million in a release build, fewer in a debug build.
#[test]
fn child_reads_mutated_documents() {
    if !in_child() {
        return;
    }
    let entries = |path: &str| fs::read_dir(path).unwrap().count();
    let held = || (entries("/proc/self/task"), entries("/proc/self/fd"));
    let cases: u32 = match std::env::var("ORBITE_FUZZ_CASES") {
        Ok(cases) => cases.parse().unwrap(),
        Err(_) if cfg!(debug_assertions) => 50_000,
        Err(_) => 1_000_000,
    };
    let before = held();
    let mut mutator = Mutator::new(15);
    let (mut loaded, mut refused) = (0, 0);
    for case in 0..cases {
        let document = mutator.next_document();
        match bodies::document(document) {
            Ok(true) => loaded += 1,
            Ok(false) => refused += 1,
            Err(broken) => panic!("case {case}: {broken}: {}", document.escape_ascii()),
        }
        if case % 1024 == 0 {
            assert_eq!(held(), before, "threads and descriptors at case {case}");
        }
    }
    assert_eq!(held(), before, "threads and descriptors");
    // Both ways were gone often enough to mean something.
    assert!(loaded > cases / 100 && refused > cases / 4, "{loaded} loaded, {refused} refused");
    println!("<<<read>>> {loaded} loaded, {refused} refused");
}

/// LOG-025: any bytes are a descriptor that says what it says, or an error.
#[test]
fn mutated_descriptors_give_the_same_text_or_an_error() {
    let epoch = SourceEpoch::from_bytes(*b"0123456789abcdef").unwrap();
    let whole = bodies::descriptor_of("[fd00::7]:7000", &epoch);
    assert_eq!(bodies::descriptor(whole.as_str().as_bytes()), Ok(true));
    let mut random = Mutator::new(25);
    let mut taken = 0;
    for _ in 0..20_000 {
        let mut bytes = whole.as_str().as_bytes().to_vec();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len());
            match random.below(4) {
                0 => bytes.truncate(at + 1),
                1 => bytes.insert(at, b"0f.\n\xff"[random.below(5)]),
                2 => bytes[at] = b"0123456789abcdef"[random.below(16)],
                _ => bytes[at] ^= 1 << random.below(8),
            }
        }
        taken += u32::from(bodies::descriptor(&bytes).unwrap());
    }
    assert!(taken < 2_000, "{taken} of 20000 changed texts were still descriptors");
}
