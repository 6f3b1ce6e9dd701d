//! What the two processes of a loopback benchmark say to each other outside of the measured time:
//! one JSON document a line, a question and its answer, over the target's standard input and output.
//!
//! The target ends when its input ends, so it never outlives the process that started it.

use std::io::{BufRead, Read, Write};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

use super::runner::FarSide;
use super::usage::Usage;
use super::verify::{self, Bytes, Expected, Mismatch};
use crate::failure::{Exit, Failure};

/// Longest line: a check of 65 536 ranges fits.
const LINE_MAX: u64 = 8 << 20;

/// First line of the target.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Hello {
    Ready(Ready),
    Failed(Failure),
}

/// How to reach the target. The epoch is a secret; it goes over a pipe between a process and its
/// child, which nobody else reads.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ready {
    pub endpoint: String,
    pub epoch: String,
    /// The target's registered buffer.
    pub address: u64,
    pub length: u64,
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ready({}, {} bytes)", self.endpoint, self.length)
    }
}

/// What the initiator asks.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Ask {
    /// Write the pattern of `seed` into the first `length` bytes.
    Fill { seed: u64, length: u64 },
    /// Write zeros there.
    Clear { length: u64 },
    /// Compare.
    Check(Expected),
    /// What the process used so far.
    Usage,
    /// Take the first `length` bytes into the running digest.
    Hash { length: u64 },
    /// End the digest and start a new one.
    HashEnd,
}

/// What the target answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Answer {
    Done,
    Checked(Option<Mismatch>),
    Usage(Usage),
    Digest(String),
    Failed(Failure),
}

/// The serving side: answers until the input ends. The buffer has `length` bytes.
pub(crate) fn serve(
    memory: &dyn Bytes,
    length: u64,
    input: &mut dyn BufRead,
    output: &mut dyn Write,
) -> Result<(), Failure> {
    let mut hash = Sha256::new();
    while let Some(ask) = receive::<Ask>(input)? {
        let answer = answer(memory, length, &mut hash, ask).unwrap_or_else(Answer::Failed);
        send(output, &answer)?;
    }
    Ok(())
}

fn answer(memory: &dyn Bytes, size: u64, hash: &mut Sha256, ask: Ask) -> Result<Answer, Failure> {
    let within = |length: u64| {
        if length <= size {
            return Ok(length);
        }
        Err(Failure::environment(format!("{length} bytes asked of a buffer of {size}")))
    };
    match ask {
        Ask::Fill { seed, length } => verify::fill(memory, seed, 0, within(length)?)?,
        Ask::Clear { length } => verify::clear(memory, 0, within(length)?)?,
        Ask::Check(expected) => {
            within(expected.footprint)?;
            return Ok(Answer::Checked(verify::check(memory, &expected)?));
        }
        Ask::Usage => return Ok(Answer::Usage(Usage::of_this_process())),
        Ask::Hash { length } => digest(memory, within(length)?, hash)?,
        Ask::HashEnd => return Ok(Answer::Digest(hex(&std::mem::take(hash).finalize()))),
    }
    Ok(Answer::Done)
}

/// Takes the first `length` bytes of `memory` into `hash`.
pub(crate) fn digest(memory: &dyn Bytes, length: u64, hash: &mut Sha256) -> Result<(), Failure> {
    let mut scratch = vec![0; (256 << 10).min(length as usize)];
    let mut done = 0;
    while done < length {
        let part = (scratch.len() as u64).min(length - done) as usize;
        let part = scratch.get_mut(..part).unwrap_or_default();
        memory.read(done, part)?;
        hash.update(&*part);
        done += part.len() as u64;
    }
    Ok(())
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or('?');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Sends one line.
pub(crate) fn send<T: Serialize>(output: &mut dyn Write, message: &T) -> Result<(), Failure> {
    let mut line =
        serde_json::to_vec(message).map_err(|error| broken("write to").because(error))?;
    line.push(b'\n');
    let sent = output.write_all(&line).and_then(|()| output.flush());
    sent.map_err(|error| broken("write to").because(error))
}

/// Receives one line. `None`: the other side ended.
pub(crate) fn receive<T: DeserializeOwned>(input: &mut dyn BufRead) -> Result<Option<T>, Failure> {
    let mut line = Vec::new();
    let read = input.take(LINE_MAX).read_until(b'\n', &mut line);
    if read.map_err(|error| broken("read from").because(error))? == 0 {
        return Ok(None);
    }
    if line.last() != Some(&b'\n') {
        return Err(broken("read from").because("the line is cut off or too long"));
    }
    let message = serde_json::from_slice(&line);
    message.map(Some).map_err(|error| broken("read from").because(error))
}

fn broken(what: &str) -> Failure {
    Failure::new(Exit::Peer, format!("cannot {what} the other process of the benchmark"))
}

/// The initiator's side of the two pipes.
pub(crate) struct Client<R, W> {
    input: R,
    output: W,
}

impl<R: BufRead, W: Write> Client<R, W> {
    /// Waits for the target's first line.
    pub(crate) fn greet(mut input: R, output: W) -> Result<(Self, Ready), Failure> {
        match receive::<Hello>(&mut input)? {
            Some(Hello::Ready(ready)) => Ok((Self { input, output }, ready)),
            Some(Hello::Failed(failure)) => Err(failure),
            None => Err(Failure::environment("the target process ended before it was ready")),
        }
    }

    fn ask(&mut self, ask: &Ask) -> Result<Answer, Failure> {
        send(&mut self.output, ask)?;
        match receive(&mut self.input)? {
            Some(Answer::Failed(failure)) => Err(failure),
            Some(answer) => Ok(answer),
            None => Err(Failure::new(Exit::Peer, "the target process ended before its time")),
        }
    }

    fn done(&mut self, ask: &Ask) -> Result<(), Failure> {
        match self.ask(ask)? {
            Answer::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// The target takes the first `length` bytes of its buffer into its digest.
    pub(crate) fn hash(&mut self, length: u64) -> Result<(), Failure> {
        self.done(&Ask::Hash { length })
    }

    /// SHA-256 of all that was hashed, as hexadecimal digits.
    pub(crate) fn hash_end(&mut self) -> Result<String, Failure> {
        match self.ask(&Ask::HashEnd)? {
            Answer::Digest(digest) => Ok(digest),
            _ => Err(unexpected()),
        }
    }
}

fn unexpected() -> Failure {
    broken("understand").because("the answer belongs to another question")
}

impl<R: BufRead, W: Write> FarSide for Client<R, W> {
    fn fill(&mut self, seed: u64, length: u64) -> Result<u64, Failure> {
        self.done(&Ask::Fill { seed, length }).map(|()| seed)
    }

    fn clear(&mut self, length: u64) -> Result<(), Failure> {
        self.done(&Ask::Clear { length })
    }

    fn check(&mut self, expected: &Expected) -> Result<Option<Mismatch>, Failure> {
        match self.ask(&Ask::Check(expected.clone()))? {
            Answer::Checked(found) => Ok(found),
            _ => Err(unexpected()),
        }
    }

    fn usage(&mut self) -> Result<Option<Usage>, Failure> {
        match self.ask(&Ask::Usage)? {
            Answer::Usage(usage) => Ok(Some(usage)),
            _ => Err(unexpected()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;
    use std::os::unix::net::UnixStream;

    use super::super::verify::tests::Plain;
    use super::super::verify::{Looks, Moved};
    use super::*;
    use crate::args::Depth;

    const SIZE: u64 = 1 << 16;

    /// Runs `body` against a target on another thread. The target plants a wrong byte at the start.
    fn with_target(body: impl FnOnce(&mut Client<BufReader<UnixStream>, UnixStream>)) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let target = std::thread::Builder::new().spawn(move || {
            let memory = Plain::new(SIZE as usize);
            let (mut input, mut output) = (BufReader::new(theirs.try_clone().unwrap()), theirs);
            let (endpoint, epoch) = ("127.0.0.1:1".to_owned(), "ab".repeat(16));
            let ready = Ready { endpoint, epoch, address: 4096, length: SIZE };
            send(&mut output, &Hello::Ready(ready)).unwrap();
            serve(&memory, SIZE, &mut input, &mut output)
        });
        let input = BufReader::new(ours.try_clone().unwrap());
        let (mut client, ready) = Client::greet(input, ours).unwrap();
        assert_eq!((ready.address, ready.length), (4096, SIZE));
        body(&mut client);
        drop(client);
        assert_eq!(target.unwrap().join().unwrap(), Ok(()), "ends with its input");
    }

    fn whole(seed: u64) -> Expected {
        let ranges = vec![Moved { to: 0, from: 0, length: SIZE }];
        Expected { seed, footprint: SIZE, ranges, depth: Depth::Full }
    }

    #[test]
    fn the_target_fills_clears_compares_and_counts() {
        with_target(|client| {
            assert_eq!(client.fill(3, SIZE), Ok(3));
            assert_eq!(client.check(&whole(3)), Ok(None));
            assert!(client.check(&whole(4)).unwrap().is_some());
            client.clear(SIZE).unwrap();
            let wrong = client.check(&whole(3)).unwrap().unwrap();
            assert_eq!(wrong.looks, Looks::Missing);
            assert!(client.usage().unwrap().unwrap().cpu_ns > 0);
        });
    }

    #[test]
    fn digests_run_over_pieces_and_start_anew() {
        with_target(|client| {
            client.clear(SIZE).unwrap();
            client.hash(3).unwrap();
            client.hash(2).unwrap();
            let five_zeros = hex(&Sha256::digest([0; 5]));
            assert_eq!(client.hash_end(), Ok(five_zeros));
            assert_eq!(client.hash_end(), Ok(hex(&Sha256::digest([]))));
        });
    }

    #[test]
    fn a_question_beyond_the_buffer_is_refused_and_the_next_is_answered() {
        with_target(|client| {
            for ask in [Ask::Clear { length: SIZE + 1 }, Ask::Hash { length: u64::MAX }] {
                assert!(client.ask(&ask).is_err());
            }
            assert_eq!(client.clear(SIZE), Ok(()));
        });
    }

    #[test]
    fn a_failed_start_is_the_initiators_failure() {
        let mut line = Vec::new();
        let failure = Failure::new(Exit::Config, "no").because("x");
        send(&mut line, &Hello::Failed(failure.clone())).unwrap();
        assert_eq!(Client::greet(&line[..], Vec::new()).err(), Some(failure));
        assert_eq!(Client::greet(&b""[..], Vec::new()).err().unwrap().exit, Exit::Environment);
    }

    #[test]
    fn broken_lines_are_errors_and_no_panic() {
        for bytes in [&b"{\n"[..], b"no json\n", b"{\"usage\":1}\n", b"\"usage\"", b"\xff\xfe\n"] {
            assert!(receive::<Ask>(&mut &*bytes).is_err(), "{bytes:?}");
        }
        assert!(matches!(receive::<Ask>(&mut &b"\"usage\"\n"[..]), Ok(Some(Ask::Usage))));
        assert!(matches!(receive::<Ask>(&mut &b""[..]), Ok(None)));
    }

    #[test]
    fn the_epoch_is_not_shown_by_debug() {
        let epoch = "cd".repeat(16);
        let ready = Ready { endpoint: "e".into(), epoch: epoch.clone(), address: 0, length: 1 };
        assert!(!format!("{:?}", Hello::Ready(ready)).contains("cdcd"));
    }
}
