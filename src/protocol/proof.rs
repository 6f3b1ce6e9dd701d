//! The mutual proof that both sides of a connection know the source's epoch (and the key shared
//! beforehand), without sending either.
//!
//! key = HMAC-SHA-256(psk, label ‖ epoch); without a psk, 32 zero bytes stand for it and the label is
//! another one. proof = HMAC-SHA-256(key, label ‖ nonce of the requester ‖ nonce of the source ‖ Hello ‖
//! Challenge without its proof). The labels of the two directions differ, so a proof that came back is
//! no proof. HMAC is RFC 2104, SHA-256 FIPS 180-4; both come from the RustCrypto crates.

use core::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::types::SourceEpoch;

/// Length of a proof, bytes.
pub(crate) const PROOF_LEN: usize = 32;

/// Length of a key hint, bytes.
pub(crate) const HINT_LEN: usize = 8;

const LABEL_KEY_EPOCH: &[u8] = b"orbite session key of epoch v1\0";
const LABEL_KEY_PSK: &[u8] = b"orbite session key of epoch and psk v1\0";
const LABEL_SOURCE: &[u8] = b"orbite proof of source v1\0";
const LABEL_REQUESTER: &[u8] = b"orbite proof of requester v1\0";
const LABEL_HINT: &[u8] = b"orbite key hint v1\0";

/// Block of SHA-256, bytes; HMAC fills or hashes its key to this length.
const BLOCK_LEN: usize = 64;

/// The secret of one source that proofs are made with. `Debug` shows nothing of it.
#[derive(Clone)]
pub(crate) struct SessionKey([u8; 32]);

/// A proof that is known to be needed, compared in constant time only.
#[derive(Clone)]
pub(crate) struct Proof([u8; PROOF_LEN]);

impl SessionKey {
    /// The key of the source with `epoch`, bound to `psk` if there is one. A psk may have any length;
    /// the configuration asks for 32 bytes at least.
    pub fn derive(epoch: &SourceEpoch, psk: Option<&[u8]>) -> Self {
        let label = if psk.is_some() { LABEL_KEY_PSK } else { LABEL_KEY_EPOCH };
        Self(mac(psk.unwrap_or(&[0; 32]), &[label, epoch.secret_bytes()]))
    }

    /// What the source sends. `challenge` is the body of the Challenge without its proof.
    pub fn source_proof(&self, nonces: &Nonces, hello: &[u8], challenge: &[u8]) -> Proof {
        self.proof(LABEL_SOURCE, nonces, hello, challenge)
    }

    /// What the requester sends after it verified the source's.
    pub fn requester_proof(&self, nonces: &Nonces, hello: &[u8], challenge: &[u8]) -> Proof {
        self.proof(LABEL_REQUESTER, nonces, hello, challenge)
    }

    fn proof(&self, label: &[u8], nonces: &Nonces, hello: &[u8], challenge: &[u8]) -> Proof {
        let Nonces { requester, source } = nonces;
        Proof(mac(&self.0, &[label, requester, source, hello, challenge]))
    }

    /// Lets a source that accepts two keys (a rotation) see which one the requester has. It changes with
    /// the nonce, so it names no one, and it proves nothing: it can be replayed.
    pub fn hint(&self, requester_nonce: &[u8; 16]) -> [u8; HINT_LEN] {
        let whole = mac(&self.0, &[LABEL_HINT, requester_nonce]);
        let mut hint = [0; HINT_LEN];
        for (to, from) in hint.iter_mut().zip(whole) {
            *to = from;
        }
        hint
    }
}

impl Proof {
    /// The bytes to send.
    pub const fn to_bytes(&self) -> [u8; PROOF_LEN] {
        self.0
    }

    /// Whether `found` is this proof. Takes the same time for every wrong one.
    pub fn matches(&self, found: &[u8; PROOF_LEN]) -> bool {
        self.0.ct_eq(found).into()
    }
}

/// The fresh random numbers of both sides.
#[derive(Clone, Copy)]
pub(crate) struct Nonces {
    pub requester: [u8; 16],
    pub source: [u8; 16],
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey(<redacted>)")
    }
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proof(<redacted>)")
    }
}

fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    // RFC 2104 section 2 brings a key to one block in this way. The constructor that takes any length
    // does the same and returns a `Result` that is never an error.
    let mut block = [0; BLOCK_LEN];
    if let Some(place) = block.get_mut(..key.len()) {
        place.copy_from_slice(key);
    } else {
        for (to, from) in block.iter_mut().zip(Sha256::digest(key)) {
            *to = from;
        }
    }
    let mut mac = Hmac::<Sha256>::new(&block.into());
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;
    use std::vec;

    fn epoch(byte: u8) -> SourceEpoch {
        SourceEpoch::from_bytes([byte; 16]).unwrap()
    }

    const NONCES: Nonces = Nonces { requester: [1; 16], source: [2; 16] };

    /// RFC 4231, test cases 2 and 6 (a key longer than a block).
    #[test]
    fn the_mac_gives_the_values_of_rfc_4231() {
        let short = mac(b"Jefe", &[b"what do ya want ", b"for nothing?"]);
        assert_eq!(short[..8], [0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e]);
        let text = b"Test Using Larger Than Block-Size Key - Hash Key First";
        let long = mac(&[0xaa; 131], &[text]);
        assert_eq!(long[..8], [0x60, 0xe4, 0x31, 0x59, 0x1e, 0xe0, 0xb6, 0x7f]);
    }

    #[test]
    fn keys_of_every_length_are_brought_to_a_block_as_the_crate_does() {
        for len in [0, 1, 32, 63, 64, 65, 1024] {
            let key = vec![7; len];
            let mut theirs = Hmac::<Sha256>::new_from_slice(&key).unwrap();
            theirs.update(b"text");
            let theirs: [u8; 32] = theirs.finalize().into_bytes().into();
            assert_eq!(mac(&key, &[b"te", b"xt"]), theirs, "{len}");
        }
    }

    #[test]
    fn each_part_changes_the_proof() {
        let (hello, challenge) = ([3; 128], [4; 96]);
        let proof = |epoch_byte, psk: Option<&[u8]>, nonces: &Nonces, hello: &[u8], body: &[u8]| {
            let key = SessionKey::derive(&epoch(epoch_byte), psk);
            key.source_proof(nonces, hello, body).to_bytes()
        };
        let base = proof(9, None, &NONCES, &hello, &challenge);
        assert_eq!(base, proof(9, None, &NONCES, &hello, &challenge));
        assert_ne!(base, proof(8, None, &NONCES, &hello, &challenge), "epoch");
        assert_ne!(base, proof(9, Some(&[5; 32]), &NONCES, &hello, &challenge), "psk");
        assert_ne!(base, proof(9, Some(&[0; 32]), &NONCES, &hello, &challenge), "a psk of zeros");
        let other = Nonces { requester: [7; 16], ..NONCES };
        assert_ne!(base, proof(9, None, &other, &hello, &challenge), "requester's nonce");
        let other = Nonces { source: [7; 16], ..NONCES };
        assert_ne!(base, proof(9, None, &other, &hello, &challenge), "source's nonce");
        assert_ne!(base, proof(9, None, &NONCES, &[0; 128], &challenge), "hello");
        assert_ne!(base, proof(9, None, &NONCES, &hello, &[0; 96]), "challenge");
        let key = SessionKey::derive(&epoch(9), None);
        let reflected = key.requester_proof(&NONCES, &hello, &challenge);
        assert!(!reflected.matches(&base), "direction");
    }

    #[test]
    fn only_the_whole_proof_matches_and_nothing_is_shown() {
        let key = SessionKey::derive(&epoch(9), Some(&[0x5a; 32]));
        let proof = key.source_proof(&NONCES, &[], &[]);
        assert!(proof.matches(&proof.to_bytes()));
        for bit in 0..PROOF_LEN * 8 {
            let mut wrong = proof.to_bytes();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(!proof.matches(&wrong));
        }
        assert_eq!(format!("{key:?} {proof:?}"), "SessionKey(<redacted>) Proof(<redacted>)");
        assert_ne!(key.hint(&[1; 16]), key.hint(&[2; 16]), "a hint does not name the key's owner");
    }
}
