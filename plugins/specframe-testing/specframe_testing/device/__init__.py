"""A simulated accelerator: real values, computed on the CPU, and as strict as CUDA.

Devices ``sim:0`` and ``sim:1`` are there as soon as one is asked for by name: ``Pipeline(device="sim")``,
``specframe run --device sim``, ``pytest --specframe-device sim``; for ``torch.device("sim")``, import
:mod:`specframe_testing.device.kind`.
Their tensors are of a type of their own. An operation on tensors of the host and of a device is refused. Waits of the host and
copies to the device are counted, with the file and line they happen in. Functions are captured and replayed as CUDA graphs are.
Of several values that are written to one place at once the first one is kept, where a CPU keeps the last one and a GPU any.

- :mod:`specframe_testing.device.counters`: waits, copies and allocations: count them, or refuse them
- :mod:`specframe_testing.device.rounds`: the events of each round of a run
- :mod:`specframe_testing.device.device_memory`: memory in use, and a limit of it
- :mod:`specframe_testing.device.tensor`: the tensors
- :mod:`specframe_testing.device.device_operators`: the rules of each operator
- :mod:`specframe_testing.device.captured_graphs`: graphs
- :mod:`specframe_testing.device.kernels`: writes by index, and attention under a mask
- :mod:`specframe_testing.device.varlen_kernels`: variable-length attention
- :mod:`specframe_testing.device.kind`: the answers to :mod:`specframe.devices.kinds`
"""
