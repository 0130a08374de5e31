//! On a server of `l3-dsr`: takes packets out of their tunnel without a tunnel device.

use std::process::ExitCode;

fn main() -> ExitCode {
    onearm::decap::main()
}
