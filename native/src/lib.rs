//! What a member does for each byte and each command: requests and replies of clients, the partition of a
//! key, records of the log. Each function has a reference in Python, which is used where this module is
//! missing, and which decides whatever a function here leaves.

use pyo3::prelude::*;

mod applies;
mod partitions;
mod reads;
mod records;
mod resp;

#[pymodule]
mod stele_native {
    #[pymodule_export]
    use crate::applies::apply_puts;
    #[pymodule_export]
    use crate::partitions::{gets, one_get, partitions_of};
    #[pymodule_export]
    use crate::reads::read_now;
    #[pymodule_export]
    use crate::records::{put_record, split_put, split_record};
    #[pymodule_export]
    use crate::resp::{encode_replies, split};
}
