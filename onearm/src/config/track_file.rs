//! `ha.track` and `ha.hooks`.

use std::time::Duration;

use super::limits;
use super::track::{Hooks, Quorum, Track, TrackScript};
use super::walk::{Field, Keys, Walk};

pub(super) const TRACK: Keys = Keys {
    known: &["hold", "scripts", "quorum"],
    later: &[],
};
pub(super) const SCRIPT: Keys = Keys {
    known: &["name", "command", "interval", "timeout", "rise", "fall"],
    later: &[],
};
pub(super) const QUORUM: Keys = Keys {
    known: &["service", "servers"],
    later: &[],
};
pub(super) const HOOKS: Keys = Keys {
    known: &["active", "standby", "fault", "timeout"],
    later: &[],
};

/// The user that scripts and hooks run as unless the file says otherwise: made by the package.
pub(super) const DEFAULT_SCRIPT_USER: &str = "onearm-script";
const DEFAULT_HOLD: Duration = Duration::from_secs(10);
const DEFAULT_INTERVAL: Duration = Duration::from_secs(5);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);
const DEFAULT_RISE: u32 = 2;
const DEFAULT_FALL: u32 = 3;
const DEFAULT_HOOK_TIMEOUT: Duration = Duration::from_secs(10);

const COMMAND_REMEDY: &str =
    "write path and arguments as a list, for example [\"/usr/local/lib/onearm/uplink\", \"eth1\"]";

pub(super) const fn draft_track() -> Track {
    Track {
        hold: DEFAULT_HOLD,
        scripts: Vec::new(),
        quorum: Vec::new(),
    }
}

pub(super) const fn draft_hooks() -> Hooks {
    Hooks {
        active: None,
        standby: None,
        fault: None,
        timeout: DEFAULT_HOOK_TIMEOUT,
    }
}

pub(super) fn track(walk: &mut Walk<'_>, field: &Field<'_>) -> Option<Track> {
    let table = walk.table(field, TRACK)?;
    let hold = walk.or(&table, "hold", DEFAULT_HOLD, |walk, field| {
        walk.duration(field, limits::TRACK_HOLD)
    });
    let scripts = walk.or(&table, "scripts", Vec::new(), |walk, field| {
        walk.list(field, limits::TRACK_SCRIPTS, script)
    });
    let quorum = walk.or(&table, "quorum", Vec::new(), |walk, field| {
        walk.list(field, limits::SERVICES, quorum)
    });
    Some(Track {
        hold,
        scripts,
        quorum,
    })
}

pub(super) fn hooks(walk: &mut Walk<'_>, field: &Field<'_>) -> Option<Hooks> {
    let table = walk.table(field, HOOKS)?;
    let active = walk.may(&table, "active", command);
    let standby = walk.may(&table, "standby", command);
    let fault = walk.may(&table, "fault", command);
    let timeout = walk.or(&table, "timeout", DEFAULT_HOOK_TIMEOUT, |walk, field| {
        walk.duration(field, limits::HOOK_TIMEOUT)
    });
    Some(Hooks {
        active,
        standby,
        fault,
        timeout,
    })
}

fn script(walk: &mut Walk<'_>, field: &Field<'_>) -> Option<TrackScript> {
    let table = walk.table(field, SCRIPT)?;
    let name = walk.need(&table, "name", "write name = \"uplink\"", Walk::name);
    let command = walk.need(&table, "command", COMMAND_REMEDY, command);
    let interval = walk.or(&table, "interval", DEFAULT_INTERVAL, |walk, field| {
        walk.duration(field, limits::CHECK_INTERVAL)
    });
    let default = DEFAULT_TIMEOUT.min(interval);
    let timeout = walk.or(&table, "timeout", default, |walk, field| {
        let timeout = walk.duration(field, limits::CHECK_TIMEOUT)?;
        if timeout > interval {
            let message = "longer than interval: runs would overlap";
            walk.error(field, "timeout", message, "write at most the interval");
            return None;
        }
        Some(timeout)
    });
    let count = |walk: &mut Walk<'_>, field: &Field<'_>| {
        u32::try_from(walk.integer(field, limits::CHECK_COUNT)?).ok()
    };
    let rise = walk.or(&table, "rise", DEFAULT_RISE, count);
    let fall = walk.or(&table, "fall", DEFAULT_FALL, count);
    Some(TrackScript {
        name: name?,
        command: command?,
        interval,
        timeout,
        rise,
        fall,
    })
}

fn quorum(walk: &mut Walk<'_>, field: &Field<'_>) -> Option<Quorum> {
    let table = walk.table(field, QUORUM)?;
    let service = walk.need(
        &table,
        "service",
        "write the name of a [[service]] that has a check",
        Walk::name,
    );
    let most = 1..=limits::SERVERS_PER_SERVICE as u64;
    let servers = walk.or(&table, "servers", 1, |walk, field| {
        u32::try_from(walk.integer(field, most)?).ok()
    });
    Some(Quorum {
        service: service?,
        servers,
    })
}

/// Path and arguments of a program.
fn command(walk: &mut Walk<'_>, field: &Field<'_>) -> Option<Vec<String>> {
    if !field.value.is_array() {
        walk.wrong_type(field, "a list", COMMAND_REMEDY);
        return None;
    }
    let mut first = true;
    let words = walk.list(field, limits::COMMAND_WORDS, |walk, field| {
        let is_path = std::mem::take(&mut first);
        let text = walk.text(field)?;
        if text.contains('\0') || text.len() > limits::COMMAND_BYTES {
            let message = format!("has a zero byte, or more than {} bytes", limits::COMMAND_BYTES);
            walk.error(field, "command", message, "write it shorter");
            return None;
        }
        if is_path && !text.starts_with('/') {
            let message = "not an absolute path";
            walk.error(field, "path", message, "write it from /: nothing is searched for");
            return None;
        }
        Some(text.to_owned())
    })?;
    if field.value.as_array().is_some_and(|list| list.is_empty()) {
        walk.error(field, "command", "an empty list", COMMAND_REMEDY);
        return None;
    }
    Some(words).filter(|words| !words.is_empty())
}
