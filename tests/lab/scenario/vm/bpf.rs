//! The dataplane's root tests on kernel 6.1: the verifier, every packet case by test run, attachment and flows.

use std::time::Duration;

use anyhow::Result;

use super::{Run, agent, boot, files, seconds_since};
use crate::{Lab, clock, vm::Spec};

/// Where `make vm` puts the test programs.
const TESTS: &str = "target/vm/tests";
/// Not run here: of how long something takes, or of what must be done within seconds, an emulated processor is no measure; and
/// the corpus lies in the source tree.
const SKIPPED: [&str; 3] = [
    "the_largest_configuration_is_applied_changed_and_applied_again",
    "b81_a_flood_of_first_fragments_takes_none_from_good_datagrams",
    "what_was_wrong_once_stays_right_in_the_kernel",
];
/// One test program ends within this.
const LIMIT: Duration = Duration::from_mins(30);

pub(super) fn run(run: &mut Run) -> Result<()> {
    let lab = Lab::new()?;
    let agent = agent(run);
    let mut spec = Spec::new("bpf", &agent);
    spec.cpus = 2;
    spec.memory = 2048;
    let mut names = Vec::new();
    for file in files(TESTS, "")? {
        let name = file
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        names.push(name.clone());
        spec.files.push((file, name));
    }
    let mut vm = boot(run, &lab, &spec)?;
    for name in names {
        let start = clock::now();
        let program = format!("/lab/{name}");
        let mut argv = vec![program.as_str(), "--ignored", "--test-threads=1"];
        argv.extend(SKIPPED.iter().flat_map(|name| ["--skip", name]));
        let done = vm.channel().run(&argv, LIMIT)?;
        run.report.figure(format!("{name}_s"), seconds_since(start));
        let summary = done
            .stdout
            .lines()
            .rev()
            .find(|l| l.starts_with("test result"))
            .unwrap_or("no result")
            .to_owned();
        let failed: Vec<&str> = done
            .stdout
            .lines()
            .filter(|l| l.starts_with("test ") && l.ends_with("FAILED"))
            .collect();
        let detail = if done.code == 0 {
            summary
        } else {
            let log = lab.dir().join(format!("{name}.log"));
            std::fs::write(&log, format!("{}\n{}", done.stdout, done.stderr))?;
            format!("{summary}; {}", failed.join(", "))
        };
        run.report
            .check(format!("{name} passes on 6.1"), done.code == 0, detail);
    }
    if !run.report.passed {
        run.keep_files(&lab, "bpf")?;
    }
    vm.power_off()
}
