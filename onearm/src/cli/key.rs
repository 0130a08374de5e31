use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use onearm_ha::auth::PairKeys;
use serde::Serialize;

use super::exit::{Exit, Failure};
use super::output;
use crate::config::Diagnostic;
use crate::control::{ControlClient, DEFAULT_RUN_DIR, KeyStatus};
use crate::key::{self, DEFAULT_KEY_FILE, Reader};

#[derive(Debug, Args)]
pub(super) struct KeyArgs {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Make a key for the pair: on one node, then copy the file to the other
    New {
        /// Where to write it; nothing is ever overwritten
        #[arg(long, value_name = "FILE", default_value = DEFAULT_KEY_FILE)]
        out: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Change the key without a gap: adds the next one; with --finish drops the old one
    Rotate {
        #[command(flatten)]
        file: KeyFile,
        /// Drop the old key, once the daemon says that the other node holds the next one
        #[arg(long)]
        finish: bool,
        /// With --finish: do not ask the daemon
        #[arg(long, requires = "finish")]
        force: bool,
        /// Run directory of the daemon
        #[arg(long, value_name = "DIR", default_value = DEFAULT_RUN_DIR)]
        run_dir: PathBuf,
    },
    /// Fingerprints, to compare between the nodes; never a key
    Show(KeyFile),
}

#[derive(Debug, Args)]
struct KeyFile {
    /// The key file
    #[arg(long, value_name = "FILE", default_value = DEFAULT_KEY_FILE)]
    key_file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    file: String,
    keys: Vec<KeyStatus>,
}

pub(super) fn run(args: &KeyArgs) -> Result<Exit, Failure> {
    match &args.command {
        KeyCommand::New { out, json } => {
            let _lock = key::lock(out)?;
            let keys = key::generate()?;
            key::create(out, &keys, &Reader::daemon())?;
            let next = "Copy it to the other node; there, as root:\n  \
                ssh THIS-NODE cat FILE | install -m 600 -o onearm /dev/stdin FILE\n\
                Both must show the same fingerprint: onearm key show\n";
            told(out, &keys, *json, next)
        }
        KeyCommand::Rotate {
            file,
            finish,
            force,
            run_dir,
        } => {
            if *finish {
                let daemon = Some(&**run_dir).filter(|_| !force);
                step(file, |keys| drop_old(keys, daemon))
            } else {
                step(file, add_next)
            }
        }
        KeyCommand::Show(file) => match read(file) {
            Ok(keys) => told(&file.key_file, &keys, file.json, ""),
            Err(found) => refused(&found, file.json),
        },
    }
}

fn read(file: &KeyFile) -> Result<PairKeys, Vec<Diagnostic>> {
    key::read(&file.key_file, &Reader::daemon())
}

/// What is to be written, and what to do next.
type Step = (PairKeys, &'static str);

fn step(file: &KeyFile, take: impl FnOnce(&PairKeys) -> Result<Step, Failure>) -> Result<Exit, Failure> {
    // From reading to writing: two at once would take the same step twice.
    let lock = key::lock(&file.key_file);
    let keys = match read(file) {
        Ok(keys) => keys,
        Err(found) => return refused(&found, file.json),
    };
    let lock = lock?;
    let (keys, next) = take(&keys)?;
    key::replace(&file.key_file, &keys)?;
    drop(lock);
    told(&file.key_file, &keys, file.json, next)
}

fn add_next(keys: &PairKeys) -> Result<Step, Failure> {
    let next = "Copy it to the other node and reload both (systemctl reload onearmd). They sign with the next key as soon as\n\
        both hold it; when `onearm status` says so on both: onearm key rotate --finish\n";
    Ok((key::with_next(keys)?, next))
}

/// `daemon`: the run directory of the one to ask whether the other node holds the next key.
fn drop_old(keys: &PairKeys, daemon: Option<&Path>) -> Result<Step, Failure> {
    let only = key::finished(keys)?;
    let newest = only.newest().0;
    if let Some(run_dir) = daemon {
        let status = ControlClient::connect(run_dir)?.status()?;
        let peer = status.ha.authentication.and_then(|known| known.peer_key);
        if peer.is_none_or(|peer| peer < newest) {
            return Err(Failure::PeerLacksKey { key: newest });
        }
    }
    let next = "Reload this node (systemctl reload onearmd), copy the file to the other and reload that: the rotation is over.\n";
    Ok((only, next))
}

fn told(path: &Path, keys: &PairKeys, json: bool, next: &str) -> Result<Exit, Failure> {
    let report = Report {
        file: path.display().to_string(),
        keys: key::shown(keys),
    };
    if json {
        output::json(&report)?;
    } else {
        let mut text = format!("{}\n", report.file);
        for key in &report.keys {
            // Writing to a string never fails.
            let _ignored = writeln!(text, "key {}  {}", key.id, key.fingerprint);
        }
        text.push_str(&next.replace("FILE", &report.file));
        output::print(&text)?;
    }
    Ok(Exit::Ok)
}

#[derive(Serialize)]
struct Refused<'a> {
    diagnostics: &'a [Diagnostic],
}

fn refused(diagnostics: &[Diagnostic], json: bool) -> Result<Exit, Failure> {
    if json {
        output::json(&Refused { diagnostics })?;
    } else {
        for diagnostic in diagnostics {
            output::complain(&diagnostic.to_string());
        }
    }
    let unread = |found: &Diagnostic| found.rule == "key-unread";
    Ok(if diagnostics.iter().any(unread) {
        Exit::NoDaemon
    } else {
        Exit::BadConfiguration
    })
}
