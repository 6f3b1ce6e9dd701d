//! Standard output that may close under us: `orbite ... | head` ends quietly.

use std::fmt;
use std::io::{self, Write};

use crate::failure::{Exit, Failure};

/// Writes to standard output, or to anything else in tests. Each call is flushed, since a program may
/// be reading line by line.
pub(crate) struct Output<'a> {
    to: &'a mut dyn Write,
    closed: bool,
}

impl<'a> Output<'a> {
    pub(crate) fn new(to: &'a mut dyn Write) -> Self {
        Self { to, closed: false }
    }

    /// Writes `text` as it is. A reader that went away is no failure: [`is_closed`](Self::is_closed)
    /// is true from then on, and later text is dropped.
    pub(crate) fn text(&mut self, text: impl fmt::Display) -> Result<(), Failure> {
        if self.closed {
            return Ok(());
        }
        match write!(self.to, "{text}").and_then(|()| self.to.flush()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            Err(error) => {
                Err(Failure::new(Exit::Environment, "cannot write to standard output")
                    .because(error))
            }
        }
    }

    /// [`text`](Self::text) and a line feed.
    pub(crate) fn line(&mut self, text: impl fmt::Display) -> Result<(), Failure> {
        self.text(format_args!("{text}\n"))
    }

    /// Whether the reader went away. Work whose only result is output can stop.
    pub(crate) const fn is_closed(&self) -> bool {
        self.closed
    }
}

/// Writes a line for people to standard error. Nobody may be there to read it.
pub(crate) fn note(text: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Gone(io::ErrorKind);

    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_reader_is_no_failure_and_is_remembered() {
        let mut gone = Gone(io::ErrorKind::BrokenPipe);
        let mut output = Output::new(&mut gone);
        assert!(!output.is_closed());
        assert_eq!(output.line("a"), Ok(()));
        assert!(output.is_closed());
        assert_eq!(output.line("b"), Ok(()));
    }

    #[test]
    fn a_full_disk_is_a_failure() {
        let mut gone = Gone(io::ErrorKind::StorageFull);
        let failure = Output::new(&mut gone).line("a").unwrap_err();
        assert_eq!(failure.exit, Exit::Environment);
    }

    #[test]
    fn lines_end_with_a_line_feed() {
        let mut bytes = Vec::new();
        let mut output = Output::new(&mut bytes);
        output.line("a").unwrap();
        output.text("b").unwrap();
        assert_eq!(bytes, b"a\nb");
    }
}
