use nix::unistd::{Uid, User};

/// The user that programs of the operator's run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its name.
    pub name: String,
    /// Its number, not 0.
    pub user: u32,
    /// Its group.
    pub group: u32,
}

impl Account {
    /// The user `name` of this machine, for programs that `daemon` (a user's number) starts.
    ///
    /// # Errors
    /// A sentence: there is no such user, it is root, or the daemon's own.
    pub fn find(name: &str, daemon: u32) -> Result<Self, String> {
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
        Ok(Self {
            name: name.to_owned(),
            user: user.uid.as_raw(),
            group: user.gid.as_raw(),
        })
    }
}
