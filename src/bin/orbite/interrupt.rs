//! Ctrl-C: the first asks for an early end, the second ends at once.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use crate::failure::{Exit, Failure};

/// Whether the user asked for an early end. Reading it is one relaxed load.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Catches SIGINT and SIGTERM for the rest of the process. A second one ends the process with
    /// exit code 130, wherever it is.
    pub(crate) fn install() -> Result<Self, Failure> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // The order matters: the shutdown sees the flag that an earlier signal set.
            let code = i32::from(Exit::Interrupted.code());
            flag::register_conditional_shutdown(signal, code, Arc::clone(&asked))
                .and_then(|_| flag::register(signal, Arc::clone(&asked)))
                .map_err(refused)?;
        }
        Ok(Self(asked))
    }

    pub(crate) fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Keeps Ctrl-C at the terminal, which reaches every process in the foreground, from ending this one.
/// The process that started it decides.
pub(crate) fn leave_to_the_parent() -> Result<(), Failure> {
    let ignored = Arc::new(AtomicBool::new(false));
    flag::register(SIGINT, ignored).map(drop).map_err(refused)
}

/// A socket that becomes readable with the first SIGINT or SIGTERM, and its other end, for further
/// reasons to wake up.
pub(crate) fn wake_socket() -> Result<(UnixStream, UnixStream), Failure> {
    let pair = || -> io::Result<(UnixStream, UnixStream)> {
        let (waiting, ringing) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM] {
            low_level::pipe::register(signal, ringing.try_clone()?)?;
        }
        Ok((waiting, ringing))
    };
    pair().map_err(refused)
}

fn refused(error: io::Error) -> Failure {
    Failure::environment("cannot catch signals").because(error)
}
