//! How a command ends when it does not succeed: what failed, why, what to do, and the exit code.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Exit codes of every command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Exit {
    /// Done; warnings are possible.
    Success,
    /// A check failed or bytes differ.
    Mismatch,
    /// The command line is wrong.
    Usage,
    /// The configuration was refused.
    Config,
    /// This machine lacks something.
    Environment,
    /// The peer is not reachable, left, or has another epoch.
    Peer,
    /// Ended by a signal; what was printed is partial.
    Interrupted,
}

impl Exit {
    /// The number that the shell sees.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Mismatch => 1,
            Self::Usage => 2,
            Self::Config => 3,
            Self::Environment => 4,
            Self::Peer => 5,
            Self::Interrupted => 130,
        }
    }
}

/// A failed command. It travels between the two processes of a benchmark as JSON, so that the one
/// that the user started can report what happened in the other. Never holds an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub exit: Exit,
    pub what: String,
    pub cause: Option<String>,
    pub hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self { exit, what: what.into(), cause: None, hint: None }
    }

    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::new(Exit::Usage, what)
    }

    pub(crate) fn environment(what: impl Into<String>) -> Self {
        Self::new(Exit::Environment, what)
    }

    #[must_use]
    pub(crate) fn because(mut self, cause: impl fmt::Display) -> Self {
        self.cause = Some(cause.to_string());
        self
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// From an engine's error, with the exit code that fits its kind.
    pub(crate) fn engine(what: impl Into<String>, error: &orbite::Error) -> Self {
        let (exit, hint) = judge(error);
        let failure = Self::new(exit, what).because(error);
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

fn judge(error: &orbite::Error) -> (Exit, Option<&'static str>) {
    use orbite::Error;
    match error {
        Error::Config { .. } | Error::InvalidConfig(_) => {
            (Exit::Config, Some("`orbite config check FILE` names the key"))
        }
        Error::InvalidRequest(_) => (Exit::Usage, None),
        Error::Timeout { .. } => {
            (Exit::Peer, Some("is the target still running, and does no firewall stand between?"))
        }
        Error::StaleEpoch { .. } | Error::PeerClosed { .. } => {
            (Exit::Peer, Some("take the descriptor that the running target wrote"))
        }
        Error::Connect { .. } | Error::Transport { .. } | Error::Protocol { .. } => {
            (Exit::Peer, None)
        }
        _ => (Exit::Environment, None),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.what)?;
        if let Some(cause) = &self.cause {
            write!(f, "\n  cause: {cause}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_what_why_and_what_to_do() {
        let failure = Failure::usage("no such file").because("ENOENT").hint("name another");
        assert_eq!(
            failure.to_string(),
            "error: no such file\n  cause: ENOENT\n  hint: name another"
        );
        assert_eq!(Failure::environment("x").to_string(), "error: x");
    }

    #[test]
    fn exit_codes_are_the_documented_ones() {
        let all = [
            (Exit::Success, 0),
            (Exit::Mismatch, 1),
            (Exit::Usage, 2),
            (Exit::Config, 3),
            (Exit::Environment, 4),
            (Exit::Peer, 5),
            (Exit::Interrupted, 130),
        ];
        for (exit, code) in all {
            assert_eq!(exit.code(), code);
        }
    }

    #[test]
    fn an_engine_error_decides_the_exit_code() {
        let failure = |error: orbite::Error| Failure::engine("x", &error).exit;
        assert_eq!(failure(orbite::Error::InvalidConfig("a".into())), Exit::Config);
        assert_eq!(failure(orbite::Error::Unavailable("a".into())), Exit::Environment);
        assert_eq!(failure(orbite::Error::Closed), Exit::Environment);
        assert_eq!(failure(orbite::Error::InvalidRequest("a".into())), Exit::Usage);
    }

    #[test]
    fn a_failure_survives_the_pipe() {
        let failure = Failure::environment("a").because("b").hint("c");
        let text = serde_json::to_string(&failure).unwrap();
        assert_eq!(serde_json::from_str::<Failure>(&text).unwrap(), failure);
    }
}
