use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use onearm_ha::auth::{Key, PairKeys};
use serde::Serialize;

use super::exit::{Exit, Failure};
use super::output;
use crate::config::Diagnostic;
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
        /// Drop the old key, once both nodes sign with the next one
        #[arg(long)]
        finish: bool,
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
    keys: Vec<ShownKey>,
}

#[derive(Serialize)]
struct ShownKey {
    id: u16,
    fingerprint: String,
}

pub(super) fn run(args: &KeyArgs) -> Result<Exit, Failure> {
    match &args.command {
        KeyCommand::New { out, json } => {
            let keys = key::generate()?;
            key::create(out, &keys, &Reader::daemon())?;
            let next = "Copy it to the other node; there, as root:\n  \
                ssh THIS-NODE cat FILE | install -m 600 -o onearm /dev/stdin FILE\n\
                Both must show the same fingerprint: onearm key show\n";
            told(out, &keys, *json, next)
        }
        KeyCommand::Rotate { file, finish } => rotate(file, *finish),
        KeyCommand::Show(file) => match read(file) {
            Ok(keys) => told(&file.key_file, &keys, file.json, ""),
            Err(found) => refused(&found, file.json),
        },
    }
}

fn read(file: &KeyFile) -> Result<PairKeys, Vec<Diagnostic>> {
    key::read(&file.key_file, &Reader::daemon())
}

fn rotate(file: &KeyFile, finish: bool) -> Result<Exit, Failure> {
    let keys = match read(file) {
        Ok(keys) => keys,
        Err(found) => return refused(&found, file.json),
    };
    let (keys, next) = if finish {
        (
            key::finished(&keys)?,
            "Copy it to the other node and reload there, too (systemctl reload onearmd): the rotation is over.\n",
        )
    } else {
        (
            key::with_next(&keys)?,
            "Copy it to the other node and reload both (systemctl reload onearmd). They sign with the next key as soon as\n\
             both hold it; when `onearm status` says so on both: onearm key rotate --finish\n",
        )
    };
    key::replace(&file.key_file, &keys)?;
    told(&file.key_file, &keys, file.json, next)
}

fn told(path: &Path, keys: &PairKeys, json: bool, next: &str) -> Result<Exit, Failure> {
    let shown = |key: &Key| ShownKey {
        id: key.id.0,
        fingerprint: key::fingerprint(keys, key),
    };
    let report = Report {
        file: path.display().to_string(),
        keys: keys.keys().iter().map(shown).collect(),
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
