//! The live line: on a terminal's standard error only, and never while a batch is timed.
//!
//! It is drawn between measurements, by the thread that measures. A thread that redraws in between
//! would take its time from the CPUs under measurement.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::cells::Cell;

/// A progress line, or nothing.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A line of `steps` where standard error is a terminal and the user did not ask for quiet.
    pub(crate) fn new(steps: u64, quiet: bool) -> Self {
        if quiet || !stderr().is_terminal() {
            return Self::silent();
        }
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
        let template = "{bar:24} {pos}/{len}  {msg}  {elapsed}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self(bar)
    }

    pub(crate) fn silent() -> Self {
        Self(ProgressBar::hidden())
    }

    pub(crate) fn begins(&self, cell: &Cell) {
        self.says(format!("{} {}", cell.op, cell.payload()));
    }

    pub(crate) fn says(&self, what: String) {
        self.0.set_message(what);
        self.0.tick();
    }

    /// One step is done.
    pub(crate) fn ended(&self) {
        self.0.inc(1);
    }

    /// Takes the line away.
    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}
