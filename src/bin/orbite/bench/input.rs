//! `--input FILE`: the bytes of a real file go to the target and come back, and three SHA-256 say
//! whether they are the same: of what was read here, of what arrived there, of what came back.
//!
//! The file goes through a window of registered memory piece by piece, so it may be larger than
//! memory.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::cells::{Op, Span};
use super::control::{digest, hex};
use super::loopback::Pair;
use super::machine::Machine;
use super::progress::Progress;
use super::report::{Head, text};
use super::runner::{Clock, FarSide, Mover};
use super::stats::{gigabytes_per_second, round};
use super::usage::RealClock;
use super::{pin, table, verify};
use crate::args::Sweep;
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::size;

/// Window where the command line names none.
const WINDOW: u64 = 256 << 20;

/// Bytes read from the file at a time.
const CHUNK: usize = 1 << 20;

/// A target that hashes what arrived.
pub(crate) trait Hashing: FarSide {
    /// Takes the first `length` bytes of the buffer into the running digest.
    fn hash(&mut self, length: u64) -> Result<(), Failure>;
    /// Ends the digest: hexadecimal digits.
    fn hash_end(&mut self) -> Result<String, Failure>;
}

impl Hashing for super::child::Pipes {
    fn hash(&mut self, length: u64) -> Result<(), Failure> {
        Self::hash(self, length)
    }
    fn hash_end(&mut self) -> Result<String, Failure> {
        Self::hash_end(self)
    }
}

/// What became of the file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Moved {
    /// Bytes of the file.
    size: u64,
    /// Bytes moved each way; less than `size` if interrupted.
    bytes: u64,
    window: u64,
    pieces: u64,
    sha256: String,
    sha256_target: String,
    sha256_back: String,
    verified: bool,
    write_s: f64,
    write_gb_per_s: f64,
    read_s: f64,
    read_gb_per_s: f64,
}

impl Moved {
    const fn complete(&self) -> bool {
        self.bytes == self.size
    }
}

/// The pair of processes, with the file between them.
struct Carrier<'a, M, F, C> {
    mover: &'a mut M,
    far: &'a mut F,
    clock: &'a mut C,
    interrupt: &'a Interrupt,
    progress: &'a Progress,
}

impl<M: Mover, F: Hashing, C: Clock> Carrier<'_, M, F, C> {
    fn carry(&mut self, file: &mut dyn Read, size: u64, window: u64) -> Result<Moved, Failure> {
        let (mut here, mut back) = (Sha256::new(), Sha256::new());
        let (mut write_ns, mut read_ns, mut bytes, mut pieces) = (0, 0, 0, 0);
        while bytes < size && !self.interrupt.asked() {
            let piece = (size - bytes).min(window);
            self.load(file, piece, &mut here)?;
            self.far.clear(piece)?;
            write_ns += self.move_piece(Op::Write, piece)?;
            self.far.hash(piece)?;
            verify::clear(self.mover.local(), 0, piece)?;
            read_ns += self.move_piece(Op::Read, piece)?;
            digest(self.mover.local(), piece, &mut back)?;
            bytes += piece;
            pieces += 1;
            self.progress.ended();
        }
        self.progress.finish();
        let (sha256, sha256_back) = (hex(&here.finalize()), hex(&back.finalize()));
        let sha256_target = self.far.hash_end()?;
        let verified = sha256 == sha256_target && sha256 == sha256_back;
        let rate = |ns| round(gigabytes_per_second(bytes, ns), 6);
        Ok(Moved {
            size,
            bytes,
            window,
            pieces,
            sha256,
            sha256_target,
            sha256_back,
            verified,
            write_s: write_ns as f64 / 1e9,
            write_gb_per_s: rate(write_ns),
            read_s: read_ns as f64 / 1e9,
            read_gb_per_s: rate(read_ns),
        })
    }

    /// The next `piece` bytes of the file, into the buffer and the digest.
    fn load(&self, file: &mut dyn Read, piece: u64, hash: &mut Sha256) -> Result<(), Failure> {
        let mut scratch = vec![0; CHUNK.min(piece as usize)];
        let mut done = 0;
        while done < piece {
            let part = (scratch.len() as u64).min(piece - done) as usize;
            let part = scratch.get_mut(..part).unwrap_or_default();
            file.read_exact(part).map_err(|error| {
                Failure::usage("cannot read the input file to its end")
                    .because(error)
                    .hint("it must not become shorter while it is read")
            })?;
            hash.update(&*part);
            self.mover.local().write(done, part)?;
            done += part.len() as u64;
        }
        Ok(())
    }

    fn move_piece(&mut self, op: Op, length: u64) -> Result<u64, Failure> {
        let batch = self.mover.prepare(op, &[Span { local: 0, remote: 0, length }]);
        let start = self.clock.now();
        self.mover.run(&batch)?;
        Ok(self.clock.now().saturating_sub(start))
    }
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    plan: PlanRecord<'a>,
    input: &'a Moved,
}

#[derive(Debug, Serialize)]
struct PlanRecord<'a> {
    processes: u32,
    transport: &'static str,
    pin: &'a pin::Plan,
    buffer: u64,
}

/// Moves `path` there and back.
pub(crate) fn run(
    path: &Path,
    sweep: &Sweep,
    interrupt: &Interrupt,
    output: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let (mut file, length) = open(path)?;
    let window = sweep.buffer.unwrap_or(WINDOW).min(length);
    let allowed = pin::allowed();
    let mut machine = Machine::read(&allowed);
    let mut pair = Pair::start(sweep, &allowed, window)?;
    let progress = Progress::new(length.div_ceil(window), sweep.quiet);
    progress.says(format!("there and back, {} at a time", size::show(window)));
    let moved = Carrier {
        mover: &mut pair.mover,
        far: pair.target.client()?,
        clock: &mut RealClock::start(),
        interrupt,
        progress: &progress,
    }
    .carry(&mut file, length, window)?;
    machine.after();
    if sweep.json {
        let head = Head::new("loopback", moved.complete(), &machine);
        let pin = &pair.plan;
        let plan = PlanRecord { processes: 2, transport: "tcp", pin, buffer: window };
        output.text(text(&Document { head, plan, input: &moved }))?;
    } else {
        let head = table::head("two processes, TCP over 127.0.0.1", &machine, &pair.plan);
        output.text(format_args!("{head}{}", describe(path, &moved)))?;
    }
    super::conclude(None, !moved.complete(), !moved.verified, pair.end())
}

fn open(path: &Path) -> Result<(File, u64), Failure> {
    let refused = || Failure::usage(format!("cannot use {} as input", path.display()));
    // Asked before opening: opening a pipe would wait for its writer.
    let metadata = fs::metadata(path).map_err(|error| refused().because(error))?;
    if !metadata.is_file() {
        return Err(refused().because("it is no regular file"));
    }
    if metadata.len() == 0 {
        return Err(refused().because("it is empty: there is nothing to move"));
    }
    let file = File::open(path).map_err(|error| refused().because(error))?;
    Ok((file, metadata.len()))
}

fn describe(path: &Path, moved: &Moved) -> String {
    let Moved { bytes, size, pieces, sha256, sha256_target, sha256_back, .. } = moved;
    let same = |digest: &String| if digest == sha256 { "equal" } else { "DIFFERENT" };
    let verdict = match (moved.verified, moved.complete()) {
        (true, true) => "Every byte arrived and came back.".to_owned(),
        (true, false) => format!("Ended early: {bytes} of {size} bytes moved, these are right."),
        (false, _) => "WRONG BYTES.".to_owned(),
    };
    let rate = |rate: f64| table::rate(Some(rate));
    let (write, read) = (rate(moved.write_gb_per_s), rate(moved.read_gb_per_s));
    let (write_s, read_s) = (moved.write_s, moved.read_s);
    format!(
        "{}: {size} bytes in {pieces} pieces of up to {}\n\
         \n\
         WRITE {write} GB/s ({write_s:.3} s), READ back {read} GB/s ({read_s:.3} s)\n\
         SHA-256 of the file   {sha256}\n\
         \x20       at the target {sha256_target}  {}\n\
         \x20       come back     {sha256_back}  {}\n\
         {verdict}\n",
        path.display(),
        size::show(moved.window),
        same(sha256_target),
        same(sha256_back),
    )
}

#[cfg(test)]
mod tests {
    use super::super::runner::tests::{FakeFar, FakePair};
    use super::*;

    /// A target that hashes, for tests: it keeps what arrived.
    struct Hasher(FakeFar, Sha256);

    impl FarSide for Hasher {
        fn fill(&mut self, seed: u64, length: u64) -> Result<u64, Failure> {
            self.0.fill(seed, length)
        }
        fn clear(&mut self, length: u64) -> Result<(), Failure> {
            self.0.clear(length)
        }
        fn check(
            &mut self,
            expected: &verify::Expected,
        ) -> Result<Option<verify::Mismatch>, Failure> {
            self.0.check(expected)
        }
        fn usage(&mut self) -> Result<Option<super::super::usage::Usage>, Failure> {
            self.0.usage()
        }
    }

    impl Hashing for Hasher {
        fn hash(&mut self, length: u64) -> Result<(), Failure> {
            digest(&*self.0.remote, length, &mut self.1)
        }
        fn hash_end(&mut self) -> Result<String, Failure> {
            Ok(hex(&std::mem::take(&mut self.1).finalize()))
        }
    }

    fn carry(pair: &mut FakePair, bytes: &[u8], window: u64) -> Result<Moved, Failure> {
        let (mut far, mut clock) = (Hasher(pair.far(), Sha256::new()), pair.clock());
        let (interrupt, progress) = (Interrupt::default(), Progress::silent());
        let mut carrier = Carrier {
            mover: pair,
            far: &mut far,
            clock: &mut clock,
            interrupt: &interrupt,
            progress: &progress,
        };
        carrier.carry(&mut &*bytes, bytes.len() as u64, window)
    }

    fn payload(length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        super::super::pattern::fill(3, 0, &mut bytes);
        bytes
    }

    #[test]
    fn files_of_any_size_go_through_a_small_window() {
        for length in [1, 4095, 4096, 4097, 8192, 50_001] {
            let mut pair = FakePair::new(4096);
            let bytes = payload(length);
            let moved = carry(&mut pair, &bytes, 4096).unwrap();
            assert!(moved.verified && moved.complete(), "{length}");
            assert_eq!(moved.sha256, hex(&Sha256::digest(&bytes)));
            assert_eq!(moved.pieces, length.div_ceil(4096) as u64);
            assert_eq!(pair.runs, 2 * moved.pieces);
            let seconds = moved.pieces as f64 * 10e-6;
            assert!((moved.write_s - seconds).abs() < 1e-12);
            let rate = length as f64 / seconds / 1e9;
            assert!((moved.write_gb_per_s - rate).abs() < 1e-5, "{length}");
        }
    }

    #[test]
    fn one_wrong_byte_anywhere_is_found() {
        let mut pair = FakePair::new(4096);
        pair.fault = Some(|bytes| bytes[17] ^= 0x80);
        let moved = carry(&mut pair, &payload(9000), 4096).unwrap();
        assert!(!moved.verified);
        assert_ne!(moved.sha256, moved.sha256_target);
        assert!(describe(Path::new("f"), &moved).contains("DIFFERENT"));
    }

    #[test]
    fn a_file_that_becomes_shorter_is_an_error() {
        let mut pair = FakePair::new(4096);
        let (mut far, mut clock) = (Hasher(pair.far(), Sha256::new()), pair.clock());
        let (interrupt, progress) = (Interrupt::default(), Progress::silent());
        let mut carrier = Carrier {
            mover: &mut pair,
            far: &mut far,
            clock: &mut clock,
            interrupt: &interrupt,
            progress: &progress,
        };
        let failure = carrier.carry(&mut &[1u8; 5000][..], 9000, 4096).unwrap_err();
        assert!(failure.hint.unwrap().contains("shorter"));
    }

    #[test]
    fn directories_devices_and_missing_files_are_refused() {
        for path in ["/", "/dev/null", "/no/such/file"] {
            let failure = open(Path::new(path)).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage, "{path}");
            assert!(failure.cause.is_some());
        }
    }

    #[test]
    fn an_empty_file_says_so() {
        let path = std::env::temp_dir().join(format!("orbite-empty-{}", std::process::id()));
        fs::write(&path, "").unwrap();
        let failure = open(&path).unwrap_err();
        fs::remove_file(&path).unwrap();
        assert!(failure.cause.unwrap().contains("empty"));
    }
}
