//! The loaded programs, frame by frame (`BPF_PROG_TEST_RUN`): the table of cases that `dataplane/common` runs over ordinary
//! memory, here through the kernel's verifier, maps and tail calls.
#![expect(unreachable_pub, reason = "files shared with dataplane/common/tests")]

#[path = "../common/tests/cases/mod.rs"]
mod cases;
#[path = "prog_run/kernel.rs"]
mod kernel;
#[path = "../common/tests/support/mod.rs"]
mod support;

use kernel::Kernel;

#[test]
#[ignore = "needs root"]
fn every_case_of_the_table_holds_in_the_kernel() {
    cases::run_all(&mut Kernel::new());
}
