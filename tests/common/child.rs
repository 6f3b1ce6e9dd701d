//! Parts of a suite that run in a process of their own: the suite starts itself again, and a test that
//! does nothing otherwise plays the part that an environment variable names.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::{SOON, eventually, now, pause, threads};

const PART: &str = "ORBITE_TEST_PART";
const ARGUMENT: &str = "ORBITE_TEST_ARGUMENT";
/// Before each line that a part has to say; the test runner prints lines of its own.
const MARK: &str = "@@ ";

/// The part that this process was started for, with its argument.
pub fn part() -> Option<(String, String)> {
    Some((std::env::var(PART).ok()?, std::env::var(ARGUMENT).unwrap_or_default()))
}

/// Says a line to the process that started this one.
pub fn say(line: impl std::fmt::Display) {
    let mut output = std::io::stdout().lock();
    writeln!(output, "\n{MARK}{line}").and_then(|()| output.flush()).unwrap();
}

/// The next line that the process which started this one said; `None` at its end.
pub fn hear() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line).unwrap();
    (read > 0).then(|| line.trim_end().to_owned())
}

/// A process that plays a part. Killed when dropped.
pub struct Part {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Part {
    /// Starts part `name` of this suite, whose test `test` looks for one.
    pub fn start(test: &str, name: &str, argument: &str) -> Self {
        Self::confined(&[], &std::env::current_exe().unwrap(), test, name, argument)
    }

    /// As [`start`](Self::start), from a copy of this suite's program if that has to be another one, and
    /// with something taken away: switches of `confine.py`.
    pub fn confined(
        switches: &[&str],
        program: &Path,
        test: &str,
        name: &str,
        argument: &str,
    ) -> Self {
        let mut command = if switches.is_empty() {
            Command::new(program)
        } else {
            let mut command = Command::new("python3");
            command.arg(script()).args(switches).arg("--").arg(program);
            command
        };
        command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
        command.env(PART, name).env(ARGUMENT, argument).env_remove("ORBITE_CONF");
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.spawn().unwrap();
        let (input, output) = (child.stdin.take(), child.stdout.take().unwrap());
        let (said, lines) = channel();
        let read = move || {
            for line in BufReader::new(output).lines().map_while(std::io::Result::ok) {
                if let Some(line) = line.strip_prefix(MARK) {
                    let _nobody_listens_any_more = said.send(line.to_owned());
                }
            }
        };
        std::thread::Builder::new().spawn(read).unwrap();
        Self { child, input, lines }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it says.
    #[track_caller]
    pub fn next(&self) -> String {
        self.lines.recv_timeout(3 * SOON).unwrap()
    }

    /// Says a line to it.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Sends it a signal: `KILL`, `STOP`, `CONT`.
    pub fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &id]).status().unwrap();
        assert!(sent.success(), "{signal}");
    }

    /// Stops it, and returns once none of its threads runs any more.
    pub fn stop(&self) {
        self.signal("STOP");
        let runs = |(task, _): (PathBuf, String)| {
            let status = std::fs::read_to_string(task.join("status")).unwrap_or_default();
            !status.contains("State:\tT")
        };
        eventually("it is stopped", || !threads(self.id()).into_iter().any(runs));
    }

    /// Ends its input, and waits for its end within `bound`.
    #[track_caller]
    pub fn end_within(mut self, bound: Duration) -> ExitStatus {
        self.input = None;
        let start = now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < bound, "the other process has not ended within {bound:?}");
            pause(Duration::from_millis(5));
        }
    }

    /// Waits for an end in success.
    #[track_caller]
    pub fn succeed(self) {
        let status = self.end_within(3 * SOON);
        assert!(status.success(), "{status}");
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _it_may_have_ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/limits/confine.py")
}
