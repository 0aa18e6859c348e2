"""Before a run starts: does it fit on the GPUs, how long will it take, how many judge calls will it make.

Everything follows from the config and the model's shape; nothing is loaded or asked. Open `memory` first, then `estimate`.
"""
