//! Commands that look and print: versions, configuration, completions, the manual page.

use std::path::Path;
use std::time::Duration;

use clap::CommandFactory;
use orbite::{EngineConfig, TransferEngine};

use crate::args::{Cli, Config, Diagnostics};
use crate::failure::{Exit, Failure};
use crate::output::Output;

/// `orbite diagnostics ...`
pub(crate) fn diagnostics(command: &Diagnostics, output: &mut Output<'_>) -> Result<Exit, Failure> {
    let Diagnostics::Version { json } = command;
    let snapshot = orbite::diagnostics::version_snapshot();
    output.text(if *json { snapshot.render_json() } else { snapshot.render_text() })?;
    Ok(if snapshot.exit_code() == 0 { Exit::Success } else { Exit::Mismatch })
}

/// `orbite config ...`
pub(crate) fn config(command: &Config, output: &mut Output<'_>) -> Result<Exit, Failure> {
    match command {
        Config::Check { file } => {
            load(Some(file))?;
            output.line(format_args!("{}: valid", file.display()))?;
        }
        Config::Show { file, effective } => {
            let config = load(file.as_deref())?;
            let shown = if *effective { resolve(config)? } else { config.to_json() };
            output.line(shown.trim_end())?;
        }
    }
    Ok(Exit::Success)
}

fn load(file: Option<&Path>) -> Result<EngineConfig, Failure> {
    let (from, loaded) = match file {
        Some(file) => (file.display().to_string(), EngineConfig::from_file(file)),
        None => ("ORBITE_CONF".to_owned(), EngineConfig::from_env()),
    };
    loaded.map_err(|error| {
        Failure::new(Exit::Config, format!("the configuration of {from} is refused")).because(error)
    })
}

/// What an engine makes of it: automatic values resolved.
fn resolve(config: EngineConfig) -> Result<String, Failure> {
    let started = TransferEngine::new(config);
    let engine = started.map_err(|error| Failure::engine("cannot start an engine", &error))?;
    let shown = engine.config().to_json();
    let closed = engine.close(Duration::from_secs(5));
    closed.map_err(|error| Failure::engine("cannot close the engine", &error))?;
    Ok(shown)
}

/// `orbite completions SHELL`
pub(crate) fn completions(
    shell: clap_complete::Shell,
    output: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let mut bytes = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "orbite", &mut bytes);
    output.text(String::from_utf8_lossy(&bytes))?;
    Ok(Exit::Success)
}

/// `orbite man`
pub(crate) fn man(output: &mut Output<'_>) -> Result<Exit, Failure> {
    let mut command = Cli::command();
    // Gives each subcommand its full name.
    command.build();
    let mut bytes = Vec::new();
    pages(&command, &mut bytes)
        .map_err(|error| Failure::environment("cannot write the manual page").because(error))?;
    output.text(String::from_utf8_lossy(&bytes))?;
    Ok(Exit::Success)
}

/// The page of `command`, then those of its subcommands.
fn pages(command: &clap::Command, bytes: &mut Vec<u8>) -> std::io::Result<()> {
    clap_mangen::Man::new(command.clone()).render(bytes)?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        pages(sub, bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(work: impl FnOnce(&mut Output<'_>) -> Result<Exit, Failure>) -> String {
        let mut bytes = Vec::new();
        assert_eq!(work(&mut Output::new(&mut bytes)), Ok(Exit::Success));
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn completions_know_commands_and_flags() {
        for shell in
            [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish]
        {
            let script = printed(|output| completions(shell, output));
            assert!(script.contains("loopback") && script.contains("block-size"), "{shell}");
        }
    }

    #[test]
    fn the_manual_page_is_roff() {
        let page = printed(man);
        assert!(page.contains(".TH orbite 1"), "{page}");
        assert!(page.contains(".TH orbite-bench-run 1"), "{page}");
        assert!(page.contains("block\\-size") && !page.contains("served"));
    }

    #[test]
    fn the_version_is_printed_both_ways() {
        let command = |json| Diagnostics::Version { json };
        let text = printed(|output| diagnostics(&command(false), output));
        assert!(text.starts_with(&format!("orbite {}", orbite::diagnostics::BUILD_VERSION)));
        let json = printed(|output| diagnostics(&command(true), output));
        assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok());
    }
}
