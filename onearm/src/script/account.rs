use nix::unistd::{Gid, Group, Uid, User};

/// The user that programs of the operator's run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its name.
    pub name: String,
    /// Its number, not 0.
    pub user: u32,
    /// Its group, not 0.
    pub group: u32,
}

impl Account {
    /// The user `name` of this machine, for programs that a daemon of the user `daemon` and the group `daemons` starts;
    /// `control_group`: name of the group that may use its control socket, where it is another one.
    ///
    /// # Errors
    /// A sentence: there is no such user, it is root or the daemon's own, or its group is one of those that are trusted.
    pub fn find(name: &str, daemon: u32, daemons: u32, control_group: Option<&str>) -> Result<Self, String> {
        let user = match User::from_name(name) {
            Ok(Some(user)) => user,
            Ok(None) => return Err(format!("there is no user {name} on this machine")),
            Err(error) => return Err(format!("the user {name} cannot be looked up: {error}")),
        };
        if user.uid.is_root() {
            return Err(format!(
                "{name} is root: what runs as root can do anything to the pair"
            ));
        }
        if user.uid == Uid::from_raw(daemon) {
            return Err(format!(
                "{name} is the daemon's own user: what runs as it can read the pair's key and end the daemon"
            ));
        }
        let control = control_group
            .and_then(|group| Group::from_name(group).ok().flatten())
            .map(|group| group.gid);
        let may = if user.gid == Gid::from_raw(0) {
            "root's: what runs with it can change what root's group can"
        } else if user.gid == Gid::from_raw(daemons) {
            "the daemon's: what runs with it can use the control socket"
        } else if Some(user.gid) == control {
            "that of the control socket: what runs with it can order the node about"
        } else {
            return Ok(Self {
                name: name.to_owned(),
                user: user.uid.as_raw(),
                group: user.gid.as_raw(),
            });
        };
        Err(format!("the group of {name} is {may}"))
    }
}
