//! Journal of the egress gates. A gate outlives a crash on purpose (without a lease nothing may announce an owned
//! address), so what was put on an interface is written down before it is put there.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use onearm_dataplane::egress_gate::{self, GateRecord};
use onearm_netcfg::Place;
use serde::{Deserialize, Serialize};

const FILE: &str = "egress-gates.json";

/// The file and what stands in it. The state directory's lock is held by whoever has one of these.
#[derive(Debug)]
pub(crate) struct Gates {
    path: PathBuf,
    place: Place,
    records: Vec<GateRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Written {
    place: Place,
    records: Vec<GateRecord>,
}

impl Gates {
    /// Reads the file. Gates of another boot are gone with it; those of another network namespace are not this daemon's to
    /// take away, and are forgotten with the first record.
    ///
    /// # Errors
    /// The system's. A file that cannot be understood counts as empty, with a warning: it was damaged by another hand, since
    /// it is only ever replaced whole.
    pub(crate) fn open(state_dir: &Path, place: Place) -> io::Result<Self> {
        let path = state_dir.join(FILE);
        let written = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice::<Written>(&bytes)
                .inspect_err(|error| {
                    tracing::warn!(%error, path = %path.display(), "journal of egress gates is damaged: look for filters named egress_gate");
                })
                .ok(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let records = written
            .filter(|w| w.place == place)
            .map(|w| w.records)
            .unwrap_or_default();
        Ok(Self { path, place, records })
    }

    /// Writes down that a gate is about to be put on an interface, or what was put there.
    ///
    /// # Errors
    /// The system's: then the gate must not be put there.
    pub(crate) fn record(&mut self, record: GateRecord) -> io::Result<()> {
        match self.records.iter_mut().find(|r| r.ifindex == record.ifindex) {
            // A clsact qdisc that an earlier process added stays ours.
            Some(known) => known.qdisc_added |= record.qdisc_added,
            None => self.records.push(record),
        }
        self.write()
    }

    /// Takes all gates away. What fails stays written, with its error.
    pub(crate) fn remove_all(&mut self) -> Vec<String> {
        let mut errors = Vec::new();
        self.records.retain(|record| match egress_gate::remove(record) {
            Ok(()) => false,
            Err(error) => {
                errors.push(error.to_string());
                true
            }
        });
        if let Err(error) = self.write() {
            errors.push(format!("{}: {error}", self.path.display()));
        }
        errors
    }

    fn write(&self) -> io::Result<()> {
        if self.records.is_empty() {
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        let written = Written {
            place: self.place.clone(),
            records: self.records.clone(),
        };
        let fresh = self.path.with_extension("new");
        let mut file = File::create(&fresh)?;
        file.write_all(&serde_json::to_vec(&written)?)?;
        file.sync_all()?;
        fs::rename(&fresh, &self.path)?;
        // The rename too must be on disk before the gate is in the kernel.
        self.path
            .parent()
            .map_or(Ok(()), |dir| File::open(dir)?.sync_all())
    }
}

#[cfg(test)]
mod tests {
    use super::{Gates, Place};
    use onearm_dataplane::egress_gate::GateRecord;

    fn place(boot: &str) -> Place {
        Place {
            boot: boot.into(),
            netns: 1,
        }
    }

    fn record(ifindex: u32, qdisc_added: bool) -> GateRecord {
        GateRecord {
            ifindex,
            name: format!("leg{ifindex}"),
            qdisc_added,
        }
    }

    #[test]
    fn a_gate_stays_written_and_a_qdisc_once_added_stays_ours() {
        let dir = tempfile::tempdir().unwrap();
        let mut gates = Gates::open(dir.path(), place("a")).unwrap();
        gates.record(record(3, false)).unwrap();
        gates.record(record(3, true)).unwrap();
        gates.record(record(3, false)).unwrap();
        let again = Gates::open(dir.path(), place("a")).unwrap();
        assert_eq!(again.records, [record(3, true)]);
    }

    #[test]
    fn gates_of_another_boot_are_forgotten_and_a_damaged_file_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        Gates::open(dir.path(), place("a"))
            .unwrap()
            .record(record(3, true))
            .unwrap();
        assert!(Gates::open(dir.path(), place("b")).unwrap().records.is_empty());
        std::fs::write(dir.path().join(super::FILE), b"{\"place\"").unwrap();
        assert!(Gates::open(dir.path(), place("a")).unwrap().records.is_empty());
    }
}
