//! The programs fit the stack of the weakest verifier: kernel 6.1 rounds each frame of a chain of calls up to 32 bytes and
//! allows 512 of them in all (`check_max_stack_depth` of kernel/bpf/verifier.c), which newer kernels do not.

use std::collections::{BTreeMap, HashSet};

use aya_obj::{Object, generated::bpf_insn};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/onearm-xdp.o"));

/// Bytes of a chain of calls.
const MOST: u32 = 512;
/// What each frame is rounded up to.
const STEP: u32 = 32;
/// The frame pointer.
const FRAME: u8 = 10;

const CALL: u8 = 0x85;
const LOAD_WIDE: u8 = 0x18;
const ADD_IMMEDIATE: u8 = 0x07;
const MOVE: u8 = 0xbf;
const PSEUDO_CALL: u8 = 1;
const PSEUDO_FUNCTION: u8 = 4;

/// A function of a linked program: the deepest byte of its frame and the instructions where the ones it calls begin.
#[derive(Debug, Default)]
struct Frame {
    depth: u32,
    calls: HashSet<usize>,
}

#[test]
fn every_chain_of_calls_fits_the_stack_of_kernel_6_1() {
    let mut object = Object::parse(OBJECT).expect("an object; `make bpf` builds it");
    let sections = object.functions.keys().map(|(section, _)| *section).collect();
    object.relocate_calls(&sections).expect("calls are linked");
    let mut excess = Vec::new();
    for (name, program) in &object.programs {
        let function = &object.functions[&(program.section_index, program.address)];
        let frames = frames(&function.instructions);
        let (depth, chain) = deepest(&frames, 0);
        if depth > MOST {
            excess.push(format!("{name}: {depth} bytes, frames {chain:?}"));
        }
    }
    assert!(!object.programs.is_empty());
    assert!(
        excess.is_empty(),
        "more than {MOST} bytes:\n{}",
        excess.join("\n")
    );
}

/// Its frames by first instruction; the program's own begins at 0.
fn frames(code: &[bpf_insn]) -> BTreeMap<usize, Frame> {
    let mut frames = BTreeMap::from([(0, Frame::default())]);
    for at in 0..code.len() {
        if let Some(target) = callee(code, at) {
            frames.entry(target).or_default();
        }
    }
    let starts: Vec<usize> = frames.keys().copied().collect();
    for (at, insn) in code.iter().enumerate() {
        let start = starts[starts.partition_point(|&s| s <= at) - 1];
        let frame = frames.get_mut(&start).expect("a start");
        frame.depth = frame.depth.max(reach(code, at, *insn));
        frame.calls.extend(callee(code, at));
    }
    frames
}

/// Bytes below the frame pointer that an instruction touches or takes the address of.
fn reach(code: &[bpf_insn], at: usize, insn: bpf_insn) -> u32 {
    let class = insn.code & 7;
    let offset = match class {
        // Loads by LDX name the base as source, stores by ST and STX as destination.
        1 if insn.src_reg() == FRAME => i32::from(insn.off),
        2 | 3 if insn.dst_reg() == FRAME => i32::from(insn.off),
        _ if insn.code == ADD_IMMEDIATE && at > 0 => {
            let before = code[at - 1];
            let copied =
                before.code == MOVE && before.src_reg() == FRAME && before.dst_reg() == insn.dst_reg();
            if copied { insn.imm } else { 0 }
        }
        _ => 0,
    };
    if offset < 0 { offset.unsigned_abs() } else { 0 }
}

/// Where the function begins that an instruction calls or hands to a helper to call.
fn callee(code: &[bpf_insn], at: usize) -> Option<usize> {
    let insn = code[at];
    let calls = insn.code == CALL && insn.src_reg() == PSEUDO_CALL;
    let hands_over = insn.code == LOAD_WIDE && insn.src_reg() == PSEUDO_FUNCTION;
    (calls || hands_over).then(|| {
        at.checked_add_signed(insn.imm as isize + 1)
            .expect("within the program")
    })
}

/// The most bytes that a chain of calls from `start` takes, and its frames.
fn deepest(frames: &BTreeMap<usize, Frame>, start: usize) -> (u32, Vec<u32>) {
    let frame = &frames[&start];
    let own = frame.depth.max(1).next_multiple_of(STEP);
    let (below, mut chain) = frame
        .calls
        .iter()
        .map(|&callee| deepest(frames, callee))
        .max()
        .unwrap_or_default();
    chain.insert(0, frame.depth);
    (own + below, chain)
}
