//! Command line of `onearmd`.

use std::path::PathBuf;

use clap::Parser;

/// The daemon of one node of the pair.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "onearmd",
    version,
    about = "L4 switch node: balances, elects, keeps the other node's back"
)]
pub(crate) struct Options {
    /// This node's own file
    #[arg(long, value_name = "FILE", default_value = "/etc/onearm/node.toml")]
    pub(crate) node: PathBuf,
    /// The pair's shared file
    #[arg(long, value_name = "FILE", default_value = "/etc/onearm/pair.toml")]
    pub(crate) pair: PathBuf,
    /// Where the journal of borrowed kernel settings is kept
    #[arg(long, value_name = "DIR", default_value = "/var/lib/onearm")]
    pub(crate) state_dir: PathBuf,
    /// Where the control socket is made
    #[arg(long, value_name = "DIR", default_value = crate::control::DEFAULT_RUN_DIR)]
    pub(crate) run_dir: PathBuf,
    /// Group that may use the control socket (default: the daemon's own)
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<String>,
    /// Append everything the election is given to this file, for `onearm replay`
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// Record at most so much, in MiB: then the recording ends and says so
    #[arg(long, value_name = "MIB", default_value_t = 1_024, value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub(crate) record_limit: u64,
    /// Put back every kernel setting a daemon left behind, and exit; refused while one runs
    #[arg(long)]
    pub(crate) restore: bool,
    /// The HA process: started by the daemon itself, never by hand
    #[arg(long, hide = true)]
    pub(crate) ha_process: bool,
}
