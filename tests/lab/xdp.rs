//! The pass-through XDP program on the switch-side end of a node's cable. Without it a veth loses every frame the node
//! transmits from XDP.

use anyhow::{Context as _, Result, bail};
use aya::{
    EbpfLoader,
    programs::{Xdp, XdpMode},
};

use crate::netns::Namespace;

/// The object with the program `xdp_pass`; empty where it was not built.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/onearm-xdp.o"));

/// Keeps the programs attached; dropping it detaches them.
#[derive(Debug)]
pub struct PassThrough {
    loaded: aya::Ebpf,
}

impl PassThrough {
    /// Loads the program.
    ///
    /// # Errors
    /// When no object was built in, or the kernel refuses it.
    pub fn load() -> Result<Self> {
        if OBJECT.is_empty() {
            bail!("no eBPF object is built in: run `make bpf`, then build again");
        }
        // The object holds the product's maps too; one entry each is enough here.
        let parsed = aya_obj::Object::parse(OBJECT).context("cannot read the eBPF object")?;
        let names: Vec<String> = parsed.maps.keys().cloned().collect();
        let mut loader = EbpfLoader::new();
        for name in &names {
            loader.map_max_entries(name, 1);
        }
        let mut loaded = loader.load(OBJECT).context("cannot load the eBPF object")?;
        program(&mut loaded)?.load().context("cannot load xdp_pass")?;
        Ok(Self { loaded })
    }

    /// Attaches it natively to the interfaces `ports` of `ns`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn attach(&mut self, ns: &Namespace, ports: &[String]) -> Result<()> {
        let program = program(&mut self.loaded)?;
        ns.enter(|| {
            for port in ports {
                program
                    .attach(port, XdpMode::Driver)
                    .with_context(|| format!("cannot attach xdp_pass to {port}"))?;
            }
            Ok(())
        })
    }
}

fn program(loaded: &mut aya::Ebpf) -> Result<&mut Xdp> {
    Ok(loaded
        .program_mut("xdp_pass")
        .context("the object has no program xdp_pass")?
        .try_into()?)
}
