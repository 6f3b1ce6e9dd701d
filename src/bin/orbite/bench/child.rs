//! The target's process of a loopback benchmark, seen from the initiator and from inside.

use std::io::{self, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use orbite::Permission;

use super::control::{self, Client, Hello, Ready};
use super::engine::{self, Local, Place};
use crate::args::Served;
use crate::failure::Failure;
use crate::interrupt;

/// Longest wait for the end of the target after its input ended.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause between two looks whether it ended.
const END_POLL: Duration = Duration::from_millis(5);

/// A running target process. Dropping it ends the process.
pub(crate) struct TargetProcess {
    child: Child,
    /// Closing its output end is what ends the target, hence an option.
    client: Option<Pipes>,
}

/// The pipes to the target's standard input and from its standard output.
pub(crate) type Pipes = Client<BufReader<ChildStdout>, ChildStdin>;

impl TargetProcess {
    /// Starts this very program as target and waits until it can be opened.
    pub(crate) fn start(
        buffer: u64,
        core: Option<u32>,
        require: bool,
    ) -> Result<(Self, Ready), Failure> {
        let failed = |error: &io::Error| {
            Failure::environment("cannot start the target process").because(error)
        };
        // The running program itself, even if its file was replaced meanwhile (proc(5)).
        let mut command = Command::new("/proc/self/exe");
        command.arg0("orbite").args(["bench", "served", "--buffer"]).arg(buffer.to_string());
        if let Some(core) = core {
            command.arg("--core").arg(core.to_string());
        }
        if require {
            command.arg("--require");
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(&error))?;
        let (Some(output), Some(input)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(&io::Error::other("no pipe")));
        };
        // From here on the process is ended if anything fails.
        let mut process = Self { child, client: None };
        let (client, ready) = Client::greet(BufReader::new(input), output)?;
        process.client = Some(client);
        Ok((process, ready))
    }

    /// Questions and answers.
    pub(crate) fn client(&mut self) -> Result<&mut Pipes, Failure> {
        self.client.as_mut().ok_or_else(|| Failure::environment("the target process is ended"))
    }
}

impl Drop for TargetProcess {
    fn drop(&mut self) {
        self.client = None;
        let looks = END_TIMEOUT.as_millis() / END_POLL.as_millis();
        for _ in 0..looks {
            match self.child.try_wait() {
                Ok(None) => pause(),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "the end of a tool, after all measurements")]
fn pause() {
    std::thread::sleep(END_POLL);
}

/// The target's process: registers a buffer, says how to reach it, and serves until the initiator
/// closes the pipe.
pub(crate) fn served(args: &Served) -> Result<(), Failure> {
    interrupt::leave_to_the_parent()?;
    // Started as /proc/self/exe, it would stand in process lists as `exe`.
    let _ = std::fs::write("/proc/self/comm", "orbite");
    let mut output = io::stdout().lock();
    let started = begin(args);
    let (engine, local, ready) = match started {
        Ok(started) => started,
        // The initiator reports it, with its exit code.
        Err(failure) => return control::send(&mut output, &Hello::Failed(failure)),
    };
    control::send(&mut output, &Hello::Ready(ready))?;
    let served = control::serve(&local, args.buffer, &mut io::stdin().lock(), &mut output);
    drop(local);
    served.and(engine::close(&engine))
}

fn begin(args: &Served) -> Result<(orbite::TransferEngine, Local, Ready), Failure> {
    let place = Place { core: args.core, require: args.require, ..Place::default() };
    let engine = engine::start(&place)?;
    let local = engine::register(&engine, args.buffer, Permission::RemoteReadWrite)?;
    let ready = Ready {
        endpoint: engine.endpoint().to_owned(),
        epoch: engine.source_epoch().to_hex(),
        address: local.0.address(),
        length: local.0.length(),
    };
    Ok((engine, local, ready))
}
