//! The machine that a result was measured on. No host name, user or address.

use std::fs;

use serde::Serialize;

/// Facts of the machine before the first measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub kernel: String,
    pub cpu_model: String,
    pub cpus_allowed: Vec<u32>,
    /// Runnable processes on average over 1, 5 and 15 minutes, before.
    pub load_before: Option<[f64; 3]>,
    /// And after.
    pub load_after: Option<[f64; 3]>,
}

impl Machine {
    pub(crate) fn read(cpus_allowed: &[u32]) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Self {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpu_model: model(&read("/proc/cpuinfo")),
            cpus_allowed: cpus_allowed.to_vec(),
            load_before: load(),
            load_after: None,
        }
    }

    /// Looks at the load again.
    pub(crate) fn after(&mut self) {
        self.load_after = load();
    }

    /// One line for the table's head.
    pub(crate) fn describe(&self) -> String {
        let load = self.load_before.map_or(String::new(), |[one, ..]| format!(", load {one:.2}"));
        let (model, count) = (&self.cpu_model, self.cpus_allowed.len());
        format!("{model}, {count} CPUs allowed, Linux {}{load}", self.kernel)
    }
}

fn model(cpuinfo: &str) -> String {
    let field = |name: &str| {
        cpuinfo.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        })
    };
    // aarch64 kernels give numbers instead of a name.
    field("model name")
        .or_else(|| {
            Some(format!(
                "CPU implementer {} part {}",
                field("CPU implementer")?,
                field("CPU part")?
            ))
        })
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

fn load() -> Option<[f64; 3]> {
    parse_load(&fs::read_to_string("/proc/loadavg").ok()?)
}

fn parse_load(text: &str) -> Option<[f64; 3]> {
    let mut numbers = text.split_whitespace().map(|word| word.parse().ok());
    Some([numbers.next()??, numbers.next()??, numbers.next()??])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_found_on_both_architectures() {
        assert_eq!(model("processor\t: 0\nmodel name\t: Some CPU @ 2GHz\n"), "Some CPU @ 2GHz");
        let arm = "CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";
        assert_eq!(model(arm), "CPU implementer 0x41 part 0xd0c");
        assert_eq!(model(""), std::env::consts::ARCH);
    }

    #[test]
    fn the_load_is_three_numbers_or_nothing() {
        assert_eq!(parse_load("0.25 1.50 2.00 1/99 1234\n"), Some([0.25, 1.5, 2.0]));
        assert_eq!(parse_load("0.25 x"), None);
    }
}
