//! The operator's command: checks configurations and asks the daemon.

use std::process::ExitCode;

fn main() -> ExitCode {
    onearm::cli::main()
}
