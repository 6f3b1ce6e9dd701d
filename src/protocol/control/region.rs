//! One region of a source, as its peers are told of it.

use crate::protocol::error::FrameError;
use crate::protocol::fields::{Fields, Put};
use crate::types::{MAX_LENGTH, MemoryLocation, Permission, RegionKey};

/// Length of a descriptor, bytes.
///
/// | offset | field |
/// |---|---|
/// | 0 | region id u64 |
/// | 8 | generation u32 |
/// | 12 | permission u8: 1 read, 2 write, 3 both |
/// | 13 | memory u8: 0 host, 1 CUDA |
/// | 14 | place known u8: 1 if the next but two says something |
/// | 15 | reserved u8 |
/// | 16 | address u64 |
/// | 24 | length u64 |
/// | 32 | NUMA node or device u32; 0 if not known |
/// | 36 | reserved u32 |
/// | 40 | number of the CUDA context u64; 0 for host memory |
/// | 48 | transports u64: bit n for the transport with number n |
/// | 56 | reserved, 16 bytes |
pub(crate) const DESCRIPTOR_LEN: usize = 72;

/// A region that peers may use. It is information for a requester: the source decides each operation by
/// itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionDescriptor {
    key: RegionKey,
    address: u64,
    length: u64,
    permission: Permission,
    location: MemoryLocation,
    transports: u64,
}

impl RegionDescriptor {
    /// A descriptor of `length` bytes at `address` in the source's address space. `transports` has bit
    /// n for the transport with number n.
    ///
    /// Fails for [`Permission::Local`], which peers never see, for a length outside `1..=2^47`, and for
    /// a range that ends beyond 64 bits. So no such descriptor exists, sent or received.
    pub const fn new(
        key: RegionKey,
        address: u64,
        length: u64,
        permission: Permission,
        location: MemoryLocation,
        transports: u64,
    ) -> Result<Self, FrameError> {
        if !permission.is_remote() {
            let (what, rule) = ("region permission", "1 is read, 2 is write, 3 is both");
            return Err(FrameError::Value { what, value: permission as u64, rule });
        }
        if length == 0 || length > MAX_LENGTH {
            let (what, rule) = ("region length", "1..=2^47");
            return Err(FrameError::Value { what, value: length, rule });
        }
        if address.checked_add(length).is_none() {
            let (what, rule) = ("region length", "its end is a number of 64 bits");
            return Err(FrameError::Value { what, value: length, rule });
        }
        Ok(Self { key, address, length, permission, location, transports })
    }

    /// Names the region in operations.
    pub const fn key(&self) -> RegionKey {
        self.key
    }

    /// First byte in the source's address space.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Number of bytes, `1..=2^47`; `address + length` does not overflow.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// What the source grants; never [`Permission::Local`].
    pub const fn permission(&self) -> Permission {
        self.permission
    }

    /// Where the bytes lie.
    pub const fn location(&self) -> MemoryLocation {
        self.location
    }

    /// Bit n for the transport with number n, including numbers that this build does not know.
    pub const fn transports(&self) -> u64 {
        self.transports
    }

    /// The bytes of the descriptor.
    pub fn encode(&self) -> [u8; DESCRIPTOR_LEN] {
        let (memory, known, place, context) = match self.location {
            MemoryLocation::Cpu(None) => (0, 0, 0, 0),
            MemoryLocation::Cpu(Some(node)) => (0, 1, node, 0),
            MemoryLocation::Cuda { device, context } => (1, 1, device, context),
        };
        let mut bytes = [0; DESCRIPTOR_LEN];
        Put::new(&mut bytes)
            .u64(self.key.id)
            .u32(self.key.generation)
            .u8(self.permission as u8)
            .u8(memory)
            .u8(known)
            .reserved::<1>()
            .u64(self.address)
            .u64(self.length)
            .u32(place)
            .reserved::<4>()
            .u64(context)
            .u64(self.transports)
            .reserved::<16>()
            .finish();
        bytes
    }

    /// Fails for what [`new`](Self::new) refuses, for reserved bytes that are not zero, and for a memory
    /// or place that no location has.
    pub fn decode(bytes: &[u8; DESCRIPTOR_LEN]) -> Result<Self, FrameError> {
        let mut fields = Fields::new(bytes);
        let id = fields.u64();
        let generation = fields.u32();
        let permission = fields.u8();
        let memory = fields.u8();
        let known = fields.u8();
        fields.reserved::<1>();
        let address = fields.u64();
        let length = fields.u64();
        let place = fields.u32();
        fields.reserved::<4>();
        let context = fields.u64();
        let transports = fields.u64();
        fields.reserved::<16>();
        if !fields.finish() {
            return Err(FrameError::Reserved { what: "a region descriptor" });
        }
        // An unknown number gets the same answer as `Local`, which never travels.
        let Some(permission) = Permission::from_number(permission) else {
            let (what, rule) = ("region permission", "1 is read, 2 is write, 3 is both");
            return Err(FrameError::Value { what, value: permission.into(), rule });
        };
        let location = match (memory, known, place, context) {
            (0, 0, 0, 0) => MemoryLocation::Cpu(None),
            (0, 1, node, 0) => MemoryLocation::Cpu(Some(node)),
            (1, 1, device, context) => MemoryLocation::Cuda { device, context },
            _ => {
                let (what, rule) = ("region memory", "0 is host, 1 is CUDA, with a matching place");
                return Err(FrameError::Value { what, value: memory.into(), rule });
            }
        };
        let key = RegionKey { id, generation };
        Self::new(key, address, length, permission, location, transports)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: RegionKey = RegionKey { id: 77, generation: 5 };

    fn region(permission: Permission, location: MemoryLocation) -> RegionDescriptor {
        RegionDescriptor::new(KEY, 0x7f00_0000_0000, 4096, permission, location, 1 << 7).unwrap()
    }

    #[test]
    fn a_descriptor_round_trips_with_each_location() {
        for location in [
            MemoryLocation::Cpu(None),
            MemoryLocation::Cpu(Some(0)),
            MemoryLocation::Cpu(Some(9)),
            MemoryLocation::Cuda { device: 3, context: 99 },
        ] {
            let made = region(Permission::RemoteRead, location);
            assert_eq!(RegionDescriptor::decode(&made.encode()), Ok(made));
            assert_eq!(made.location(), location);
            assert_eq!(made.transports(), 1 << 7, "TCP has number 7");
        }
    }

    #[test]
    fn local_memory_is_never_told() {
        let cpu = MemoryLocation::Cpu(None);
        assert!(RegionDescriptor::new(KEY, 0, 1, Permission::Local, cpu, 0).is_err());
        let mut bytes = region(Permission::RemoteReadWrite, cpu).encode();
        for permission in [0, 4, 255] {
            bytes[12] = permission;
            let error = RegionDescriptor::decode(&bytes).unwrap_err();
            assert!(matches!(error, FrameError::Value { what: "region permission", .. }));
        }
    }

    #[test]
    fn a_descriptor_that_means_nothing_is_refused() {
        let good = region(Permission::RemoteWrite, MemoryLocation::Cpu(None)).encode();
        for (at, value) in [(13, 1), (13, 2), (14, 2), (15, 1), (32, 1), (36, 1), (40, 1), (71, 1)]
        {
            let mut bad = good;
            bad[at] = value;
            assert!(RegionDescriptor::decode(&bad).is_err(), "byte {at} = {value}");
        }
        let cpu = MemoryLocation::Cpu(None);
        for (address, length) in [(0, 0), (0, MAX_LENGTH + 1), (u64::MAX, 1), (u64::MAX - 8, 9)] {
            let read = Permission::RemoteRead;
            assert!(RegionDescriptor::new(KEY, address, length, read, cpu, 0).is_err());
        }
    }
}
