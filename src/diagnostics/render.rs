//! Text and JSON of a snapshot. Equal snapshots give equal bytes.

use std::fmt::Write;

use super::Snapshot;

impl Snapshot {
    /// For people: build, machine, one block for each check. Ends with a line feed.
    pub fn render_text(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = self.write_text(&mut text);
        text
    }

    /// One JSON document of version [`SCHEMA_VERSION`](super::SCHEMA_VERSION). Ends with a line feed.
    pub fn render_json(&self) -> String {
        // Maps with string keys and finite numbers only: this cannot fail.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let build = &self.build;
        writeln!(out, "orbite {} ({})", build.version, build.commit)?;
        let rows = [
            ("compiler", build.rustc.to_owned()),
            ("target", format!("{}, {}", build.target, build.profile)),
            ("features", build.features.join(", ")),
            ("declared MSRV", build.msrv.to_owned()),
            ("kernel", format!("Linux {}, {}", self.host.kernel, self.host.arch)),
            ("CPUs", format!("{} allowed, {} at a time", self.host.cpus, self.host.effective_cpus)),
            ("NUMA nodes", self.host.numa_nodes.to_string()),
            ("container", self.host.container.unwrap_or("no sign of one").to_owned()),
        ];
        for (name, value) in rows {
            writeln!(out, "  {name:<14} {value}")?;
        }
        for check in &self.checks {
            writeln!(out, "{:<7} {:<16} {}", check.outcome.name(), check.id, check.summary)?;
            for (name, value) in [
                ("detail", check.detail.as_str()),
                ("effect", check.effect.as_str()),
                ("remedy", check.remedy.as_deref().unwrap_or_default()),
            ] {
                if !value.is_empty() {
                    writeln!(out, "  {name}: {value}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BuildInfo, Check, Host, Outcome, Snapshot};

    fn snapshot() -> Snapshot {
        let check = |id, outcome, remedy: Option<&str>| Check {
            id,
            outcome,
            summary: "seen".into(),
            detail: String::new(),
            effect: "follows".into(),
            remedy: remedy.map(Into::into),
        };
        Snapshot::new(
            BuildInfo {
                version: "1.2.3",
                commit: "0123456789ab",
                rustc: "rustc 1.85.0",
                target: "x86_64-unknown-linux-gnu",
                profile: "release",
                features: vec!["cli"],
                msrv: "1.85",
            },
            Host {
                kernel: "6.1.0".into(),
                arch: "x86_64",
                cpus: 2,
                effective_cpus: 2,
                cpu_quota: None,
                numa_nodes: 1,
                container: None,
            },
            vec![check("b.b", Outcome::Fail, Some("do")), check("a.a", Outcome::Pass, None)],
        )
    }

    #[test]
    fn text_is_ordered_by_id() {
        let expected = "\
orbite 1.2.3 (0123456789ab)
  compiler       rustc 1.85.0
  target         x86_64-unknown-linux-gnu, release
  features       cli
  declared MSRV  1.85
  kernel         Linux 6.1.0, x86_64
  CPUs           2 allowed, 2 at a time
  NUMA nodes     1
  container      no sign of one
pass    a.a              seen
  effect: follows
fail    b.b              seen
  effect: follows
  remedy: do
";
        assert_eq!(snapshot().render_text(), expected);
    }

    #[test]
    fn json_is_one_document_with_the_named_keys() {
        let text = snapshot().render_json();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["schema_version"], 1);
        assert_eq!(value["build"]["commit"], "0123456789ab");
        assert_eq!(value["build"]["features"][0], "cli");
        assert_eq!(value["host"]["numa_nodes"], 1);
        assert_eq!(value["host"]["container"], serde_json::Value::Null);
        assert_eq!(value["checks"][0]["id"], "a.a");
        assert_eq!(value["checks"][1]["outcome"], "fail");
        assert_eq!(value["checks"][1]["remedy"], "do");
        assert_eq!(text, snapshot().render_json());
    }
}
