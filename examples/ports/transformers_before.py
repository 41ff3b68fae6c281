"""A tiny GPT-2, trained by the Trainer of Hugging Face."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


def make():
    config = GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    tokens = torch.randint(0, 15, (24, 8), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    args = TrainingArguments(
        "out",
        learning_rate=0.01,
        num_train_epochs=6,
        per_device_train_batch_size=4,
        lr_scheduler_type="constant",
        eval_strategy="epoch",
        save_strategy="no",
        use_cpu=True,
        report_to="none",
    )
    return Trainer(GPT2LMHeadModel(config), args, train_dataset=data[:16], eval_dataset=data[16:])


if __name__ == "__main__":
    trainer = make()
    trainer.train()
    print(trainer.evaluate())
