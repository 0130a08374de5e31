/// Which of the two nodes: 1 or 2. Decides the node's half of the SNAT ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "u8", into = "u8")
)]
pub struct NodeId(u8);

/// A node id other than 1 or 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeIdError(pub u8);

impl core::fmt::Display for NodeIdError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "a node id is 1 or 2, not {}", self.0)
    }
}

impl core::error::Error for NodeIdError {}

impl NodeId {
    /// Checks the number.
    ///
    /// # Errors
    /// [`NodeIdError`] unless `id` is 1 or 2.
    pub const fn new(id: u8) -> Result<Self, NodeIdError> {
        match id {
            1 | 2 => Ok(Self(id)),
            _ => Err(NodeIdError(id)),
        }
    }

    /// 1 or 2.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The other node of the pair.
    #[must_use]
    pub const fn other(self) -> Self {
        Self(3 - self.0)
    }
}

impl TryFrom<u8> for NodeId {
    type Error = NodeIdError;
    fn try_from(id: u8) -> Result<Self, NodeIdError> {
        Self::new(id)
    }
}

impl From<NodeId> for u8 {
    fn from(id: NodeId) -> Self {
        id.0
    }
}

#[cfg(test)]
mod tests {
    use super::{NodeId, NodeIdError};

    #[test]
    fn only_one_and_two_are_node_ids() {
        for id in 0..=u8::MAX {
            match NodeId::new(id) {
                Ok(n) => assert!(matches!(id, 1 | 2) && n.other().other() == n),
                Err(e) => assert_eq!(e, NodeIdError(id)),
            }
        }
    }
}
