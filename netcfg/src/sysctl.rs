//! Settings of a leg: read before write, written on difference only.
//!
//! `/proc/sys/net` shows the network namespace of the thread that looks.

use std::{fs, io, path::PathBuf};

use crate::{
    error::Error,
    name::{IfName, LegSysctl},
};

/// The value of a setting; none if this kernel or this leg does not have it (IPv6 switched off, leg gone).
///
/// # Errors
/// [`Error::Sysctl`] if it is there and cannot be read.
pub(crate) fn read(leg: &IfName, key: &LegSysctl) -> Result<Option<String>, Error> {
    match fs::read_to_string(path(leg, key)) {
        Ok(value) => Ok(Some(value.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Sysctl {
            operation: "read",
            key: key.path(leg),
            source,
        }),
    }
}

/// Writes a setting unless it has the value already.
///
/// # Errors
/// [`Error::Sysctl`] if it cannot be read or written, also when the leg has gone meanwhile.
pub(crate) fn write(leg: &IfName, key: &LegSysctl, value: &str) -> Result<(), Error> {
    if read(leg, key)?.as_deref() == Some(value) {
        return Ok(());
    }
    fs::write(path(leg, key), value).map_err(|source| Error::Sysctl {
        operation: "write",
        key: key.path(leg),
        source,
    })
}

fn path(leg: &IfName, key: &LegSysctl) -> PathBuf {
    PathBuf::from("/proc/sys").join(key.path(leg))
}
