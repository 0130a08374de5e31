//! The pass-through XDP program on the switch-side end of a node's cable. Without it a veth loses every frame the node
//! transmits from XDP.

use anyhow::{Context as _, Result, bail};
use aya::{EbpfLoader, programs::XdpMode};

use crate::{measure::live, netns::Namespace};

/// The object with the program `xdp_pass`; empty where it was not built.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/onearm-xdp.o"));

/// Name of the program that passes everything.
const PASS: &str = "xdp_pass";
/// Name of the program that ends what a generator sends.
const SINK: &str = "bench_sink";
/// Name of the program that turns every frame of TCP or UDP round.
const TURN: &str = "bench_parse";

/// Keeps the programs attached; dropping it detaches them.
#[derive(Debug)]
pub struct PassThrough {
    loaded: aya::Ebpf,
    program: &'static str,
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
        live::xdp(&mut loaded, PASS)?
            .load()
            .context("cannot load xdp_pass")?;
        Ok(Self {
            loaded,
            program: PASS,
        })
    }

    /// Loads one that passes all frames but those of a [generator](live::Generator), which it counts and drops.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_sink() -> Result<Self> {
        Ok(Self {
            loaded: live::load(SINK)?,
            program: SINK,
        })
    }

    /// Loads one that does the least a balancer can do: it reads a frame's headers and sends it back.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_turn() -> Result<Self> {
        Ok(Self {
            loaded: live::load(TURN)?,
            program: TURN,
        })
    }

    /// Frames of generators that it has dropped.
    ///
    /// # Errors
    /// When it is not a sink.
    pub fn sunk(&self) -> Result<u64> {
        live::sunk(&self.loaded)
    }

    /// Attaches it natively to the interfaces `ports` of `ns`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn attach(&mut self, ns: &Namespace, ports: &[String]) -> Result<()> {
        let name = self.program;
        let program = live::xdp(&mut self.loaded, name)?;
        ns.enter(|| {
            for port in ports {
                program
                    .attach(port, XdpMode::Driver)
                    .with_context(|| format!("cannot attach {name} to {port}"))?;
            }
            Ok(())
        })
    }
}
