/// Ownership group. This build has one, [`GroupId::FIRST`]; the number stays in maps and on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(transparent)
)]
pub struct GroupId(u8);

impl GroupId {
    /// The only group of this build.
    pub const FIRST: Self = Self(0);

    /// Index into lease and owner maps.
    pub const fn index(self) -> u32 {
        self.0 as u32
    }
}
