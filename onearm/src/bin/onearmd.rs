//! The daemon of one node.

use std::process::ExitCode;

fn main() -> ExitCode {
    onearm::daemon::main()
}
