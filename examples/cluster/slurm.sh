#!/bin/bash
#SBATCH --job-name=midthought
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --exclusive
#SBATCH --time=24:00:00
# A Ray head on the first node, workers on the others, and our command on the first node with the cluster's address. The environment and
# the run folder are on a file system that all nodes share. ray.num_actors x ray.gpus_per_actor is the number of GPUs that Ray manages:
# 7 of the head and 8 of the other node. Ray counts from the first GPU, so the learner uses the last one (model.device=cuda:7).
# For verl: --num-gpus=8 on the head as well, write the bundle before, and make RAY_ADDRESS="$address" runs/bundle/train.sh the last step.
# Submitted again, or with `#SBATCH --requeue`, the run continues from its last checkpoint.
set -euo pipefail

source "$SLURM_SUBMIT_DIR/.venv/bin/activate"
run=$SLURM_SUBMIT_DIR/runs/podcast
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
head_ip=$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address | awk '{print $1}')
address=$head_ip:6379

# one GPU of the head is reserved for the training process
srun --overlap --nodes=1 --ntasks=1 -w "$head" \
  ray start --head --node-ip-address="$head_ip" --port=6379 --num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus=7 --block &
sleep 15
for node in "${nodes[@]:1}"; do
  srun --overlap --nodes=1 --ntasks=1 -w "$node" \
    ray start --address="$address" --num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus=8 --block &
done
sleep 15

srun --overlap --nodes=1 --ntasks=1 -w "$head" \
  midthought train podcast --run "$run" $([ -f "$run/config.yaml" ] && echo --resume || echo --config own) \
    model.local_path=Qwen/Qwen3-4B model.dtype=bfloat16 \
    model.lora_rank=32 training.gradient_checkpointing=true model.device=cuda:7 \
    ray.use_ray=true ray.address="$address" ray.num_actors=15 ray.gpus_per_actor=1 ray.cpus_per_actor=4
