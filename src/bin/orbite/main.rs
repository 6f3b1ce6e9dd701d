//! The `orbite` command: benchmark, diagnostics, configuration. It uses the public API alone, as any
//! program that embeds the engine does.

mod args;
mod bench;
mod failure;
mod inspect;
mod interrupt;
mod output;
mod size;

use std::io;
use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use failure::{Exit, Failure};
use output::{Output, note};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to standard output, the rest to standard error; either may be gone.
            let _ = error.print();
            if error.use_stderr() && !error.to_string().contains("Usage:") {
                note("Usage: orbite <COMMAND> [OPTIONS]");
            }
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(Exit::Usage.code()));
        }
    };
    let mut stdout = io::stdout().lock();
    match run(&cli.command, &mut Output::new(&mut stdout)) {
        Ok(exit) => ExitCode::from(exit.code()),
        Err(failure) => {
            note(&failure);
            ExitCode::from(failure.exit.code())
        }
    }
}

fn run(command: &Command, output: &mut Output<'_>) -> Result<Exit, Failure> {
    match command {
        Command::Bench(bench) => bench::run(bench, output),
        Command::Diagnostics { command } => inspect::diagnostics(command, output),
        Command::Config { command } => inspect::config(command, output),
        Command::Completions { shell } => inspect::completions(*shell, output),
        Command::Man => inspect::man(output),
    }
}
