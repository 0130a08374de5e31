//! What the operator wants of this node, kept across restarts: `stance.json` in the state directory.

use std::io;
use std::path::Path;

use onearm_ha::election::Stance;
use serde::{Deserialize, Serialize};

use crate::on_disk::{self, Access};

const FILE: &str = "stance.json";
const FORMAT: u32 = 1;
/// Longest file, bytes: more than it takes.
const LONGEST: u64 = 4_096;

#[derive(Serialize, Deserialize)]
struct Kept {
    format: u32,
    stance: Stance,
}

/// The word for people.
pub(crate) const fn word(stance: Stance) -> &'static str {
    match stance {
        Stance::Normal => "normal",
        Stance::Hold => "hold",
        Stance::Maintenance => "maintenance",
    }
}

/// What is kept. What cannot be read counts as maintenance: it was put there to keep this node from owning.
pub(crate) fn load(state_dir: &Path) -> Stance {
    let path = state_dir.join(FILE);
    let kept = match on_disk::read(&path, LONGEST) {
        Ok(None) => return Stance::Normal,
        Ok(Some(text)) => serde_json::from_slice::<Kept>(&text).map_err(io::Error::from),
        Err(error) => Err(error),
    };
    if let Ok(Kept {
        format: FORMAT,
        stance,
    }) = kept
    {
        return stance;
    }
    tracing::error!(path = %path.display(), "not understood: this node is in maintenance");
    Stance::Maintenance
}

/// Keeps it.
///
/// # Errors
/// Those of the system; what was kept before still is.
pub(crate) fn store(state_dir: &Path, stance: Stance) -> io::Result<()> {
    let kept = Kept {
        format: FORMAT,
        stance,
    };
    on_disk::replace(&state_dir.join(FILE), &serde_json::to_vec(&kept)?, Access::STATE)
}

#[cfg(test)]
mod tests {
    use super::{FILE, load, store};
    use onearm_ha::election::Stance;

    #[test]
    fn what_is_stored_is_loaded_and_what_is_damaged_keeps_the_node_from_owning() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        assert_eq!(load(path), Stance::Normal);
        for stance in [Stance::Maintenance, Stance::Hold, Stance::Normal] {
            store(path, stance).unwrap();
            assert_eq!(load(path), stance);
        }
        for text in [
            "",
            "{\"format\":2,\"stance\":\"normal\"}",
            "{\"format\":1,\"stance\":\"new\"}",
        ] {
            std::fs::write(path.join(FILE), text).unwrap();
            assert_eq!(load(path), Stance::Maintenance, "{text}");
        }
        assert!(store(&path.join("gone"), Stance::Hold).is_err());
    }
}
